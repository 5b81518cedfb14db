"""Audit: does a model respect its mask, and if not, why?"""

from maskwright.auditing.expectations import some
from maskwright.auditing.run import AuditRun, Progress, audit

__all__ = ["AuditRun", "Progress", "audit", "some"]
