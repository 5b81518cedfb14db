"""The explorer: one page in the browser, on this machine alone, that shows what the library computes.

What may enter: a small server, and the reading of what its page asks. Nothing is computed here that
the library can compute, and nothing is computed again in the page. `app`, `guard` and `server` need
starlette and uvicorn (`pip install 'maskwright[explore]'`); the rest needs numpy alone.

A request passes the guard (who asks), `requests` (what is asked, and is it small enough), and a
worker process (`answers`), which can be ended when time is up.
"""
