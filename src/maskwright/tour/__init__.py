"""The tour: nine short chapters, each of which shows the code that it runs and what that gives.

What may enter: chapters of a few lines on things that exist, and the two ways to show them. A
chapter's code is held once, as text; what is shown is what is run. `run` turns chapters into
neutral steps, which `terminal` and `page` draw.
"""
