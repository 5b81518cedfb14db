"""The backends of `attention`: one module each.

A backend has `unsupported(params)`, the reason why it cannot compute a call or None, and
`forward(params, q, k, v, scores)`, which returns output and logsumexp. A backend that autograd does
not differentiate by itself also has `backward(params, saved, grad_out, grad_lse)`, which returns the
gradients of q, k, v, of the values of each bias term, and of the sinks if there are any.
"""
