"""Pictures of masks: scenes, and renderers for terminals, SVG, PNG and HTML.

`masks`, `matrices` and `walkthrough` build scenes. A renderer reads a scene and nothing else, so
that all formats show the same.
"""
