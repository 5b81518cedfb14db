"""Pictures: a neutral scene, and renderers that know nothing of masks.

What may enter: scenes made of bound masks, plans and arrays, and ways to show a scene. A renderer
reads a scene and nothing else, so that all of them show the same.
"""
