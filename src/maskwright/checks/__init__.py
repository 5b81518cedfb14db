"""Checks: of masks as people have them, and of the models that use them.

What may enter here: code that looks at a mask or a model and says what is wrong with it. Nothing
here changes what it looks at, and the core does not know of it.
"""
