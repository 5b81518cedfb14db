"""The backends of `attention`: one module each.

A backend has `unsupported(params)`, the reason why it cannot compute a call or None, and
`forward(params, q, k, v)`, which returns output and logsumexp. A backend that autograd does not
differentiate by itself also has `backward(params, saved, grad_out, grad_lse)`.
"""
