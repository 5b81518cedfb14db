"""English texts of the reasons for which a cell of a mask is visible or masked."""

from __future__ import annotations

from typing import Final

MESSAGES: Final = {
    "list.separator": "; ",
    # A cell, and the terms that decide it
    "cell.visible": "query {query} attends to key {key}: {terms}",
    "cell.masked": "query {query} does not attend to key {key}: {terms}",
    "cell.visible_at": "query {query} (position {position}) attends to key {key}: {terms}",
    "cell.masked_at": "query {query} (position {position}) does not attend to key {key}: {terms}",
    "term.visible": "{term} allows it ({reason})",
    "term.masked": "{term} masks it ({reason})",
    "term.would_allow": "{term} would allow it",
    "term.reason": "{term}: {reason}",
    "terms": "{terms}",
    "axis.head": "head {index} uses {term}",
    "axis.batch": "batch row {index} uses {term}",
    "transpose": "with query and key exchanged, {reason}",
    # Atoms
    "everything.visible": "every key is visible",
    "nothing.masked": "every key is masked",
    "relation": "{relation}",
    "prefix.visible": "key {key} is in the prefix of {length}",
    "prefix.masked": "key {key} is after the prefix of {length}",
    "chunks.visible": "both in chunk {query_chunk}",
    "chunks.masked": "query in chunk {query_chunk}, key in chunk {key_chunk}",
    "padding.visible": "key {key} is a token of sequence {sequence}",
    "padding.masked": "key {key} is padding of sequence {sequence}",
    "documents.visible": "both in document {document}",
    "documents.masked": "query in {query}, key in {key}",
    "documents.document": "document {document}",
    "documents.padding": "padding",
    "keys.visible": "key {key} is selected",
    "keys.masked": "key {key} is not selected",
    "queries.visible": "query {query} is selected",
    "queries.masked": "query {query} is not selected",
    "tree.self": "a token attends to itself",
    "tree.visible": "key {key} is an ancestor of query {query}",
    "tree.masked": "key {key} is not an ancestor of query {query}",
    "graph.self": "a node attends to itself",
    "graph.visible": "there is an edge from {query} to {key}",
    "graph.masked": "there is no edge from {query} to {key}",
    "image.visible": "pixel {key} is in the neighbourhood of {query}",
    "image.masked": "pixel {key} is not in the neighbourhood of {query}",
    "dense.visible": "the array is True there",
    "dense.masked": "the array is False there",
    "blocks.visible": "their block is True",
    "blocks.masked": "their block is False",
    "where.visible": "the predicate returns True",
    "where.masked": "the predicate returns False",
}
