"""Attention over several processes: who gets which rows, and how keys get to who needs them.

What may enter here: cutting a mask over ranks, and moving tensors between them. The planning is
numpy only; files that meet torch.distributed say so in their first line.
"""
