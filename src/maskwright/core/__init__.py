"""The core: mask expressions and their exact normal form. Needs numpy only.

A mask is the set of (batch, head, query, key) cells in which the query attends to the key. Each
query row of that set is a short list of key intervals, called its spans. A bias changes the scores
inside that set; it never changes the set.

    expr         Mask, Atom, and the operators        atoms/       the masks that are combined
    frame        sizes, positions, conventions        evaluate     expression -> spans, in row blocks
    spans        the normal form                      interval_ops intervals as plain arrays
    bound        a mask on a frame                    regions      closed-form counts of cells
    tiles        empty, full and partial blocks       compare      the first differing cell
    explain      why a cell is visible or masked      ascii        a grid of characters
    simplify     the laws of the algebra              parser, serialize   text and JSON
    batching     pad and pack sequences               validate     arrays and numbers of arguments
    cache, mask_registry   derived values, and handles for compiled graphs
    oracle       the definition of every mask, cell by cell, for tests only
"""
