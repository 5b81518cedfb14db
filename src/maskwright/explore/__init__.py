"""The explorer: a local web page that draws, explains and computes masks as they are typed.

`app` starts the server and `security` checks every request. The body of a request goes to a worker
process (`workers`), which decodes it by its `schema` and calls a function of `handlers`. Everything
shown is computed by the library; the page only draws it. Needs `pip install 'maskwright[explore]'`.
"""
