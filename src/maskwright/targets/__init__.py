"""Targets: a mask in the form that a framework takes, exactly this mask or a refusal.

One file a target; targets never import each other. Each file holds `TARGET`, what the target can
say as data, `lower`, which says it, and `usage`, the lines that a person would write to use it.
What several need is in `facts` (questions about a bound mask), `segments`, `fills` and
`torch_tensors`. A framework is imported only in the file that carries its name, and only when
that target is asked for.
"""
