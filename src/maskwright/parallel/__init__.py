"""Attention over several processes: sharding of the sequence, exchange of keys, and checkpoints.

`layout`, `workload`, `submask` and `cost_model` plan with numpy alone. The other modules communicate
over torch.distributed.
"""
