"""The core: masks as expressions, and their exact normal form. Needs numpy and nothing else.

A mask is the set of (batch, head, query, key) cells in which a query may see a key.
Every query's row of it is a few intervals of keys.

    mask       what every mask can be asked      atoms_*    the sets that are combined
    compose    & | ~ .T by_head by_batch         literal    values as source
    frame      sizes, positions, conventions     spans      the normal form and its set operations
    line       interval arithmetic on arrays     arrays     any framework's array in
    region     the part being read               bound      an expression on a frame: the answers
    tiles      blocks empty, full or partial     why, grid  a cell explained; a picture in text
    compare    the first cell that differs       atoms      the table of all atoms
    simplify   the laws of the algebra           text, json_form   mask ⇄ text ⇄ JSON
    batches    pad and pack ragged sequences     oracle     the definition of truth, for tests

What may enter: numpy. What may not: any framework, and any package of maskwright but `errors`.
"""
