"""Attention under any mask: the plan of a mask, what runs it, and which way is the cheapest.

What may enter here: computing attention, and choosing how. No model, and no framework's habits.
"""
