"""Recognition: the shortest mask expression for a given array.

The array is read as visible and masked cells (`encoding`), and the expression with the shortest
text is searched for (minimum description length). For each plane of queries and keys, terms that
fit it are proposed (`position_terms`, `structure_terms`); the cheapest set of them whose & or | is
the plane is selected (`cover`); & and | are nested, and batch rows and heads are combined, where
that is shorter (`search`). The result is compared with all cells of the array before it is returned
(`recognize`), so it is exact: where no expression fits, it is the array itself.
"""
