"""The documentation's generator lives beside the pages that it writes."""
