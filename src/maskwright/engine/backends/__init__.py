"""The backends of `attention`: one module each.

A backend has `SUPPORT`, the calls that it can compute, and `forward(call)`, which returns output and
logsumexp. A backend that autograd does not differentiate by itself also has
`backward(call, out, lse, grad_out, grad_lse)`, which returns the gradients of all tensors of the call:
q, k, v, the values of each bias term, and the sinks if there are any. That of a bias term that
requires none is empty.
"""
