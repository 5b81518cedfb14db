// Requests to the server. All failures are ApiErrors.

export class ApiError extends Error {
  constructor(message, { at = null, kind = "Error", status = 0 } = {}) {
    super(message);
    this.name = "ApiError";
    this.at = at; // [start, stop] in code points of the expression, or null
    this.kind = kind;
    this.status = status; // 0 without a response
  }
}

/** POST /api/<name>; returns the JSON. Throws AbortError if aborted, else ApiError. */
export async function post(name, body, signal) {
  return read(await send(name, body, signal));
}

/** GET /api/<name>; returns the JSON. */
export async function get(name, signal) {
  return read(await call(name, { headers: { "X-Maskwright-Token": token() }, signal }));
}

/** POST /api/<name>; returns the file as a Blob. */
export async function file(name, body, signal) {
  return (await send(name, body, signal)).blob();
}

export const isAbort = (error) => error?.name === "AbortError";

const BUSY_STATUSES = new Set([429, 503]);
const RETRY_DELAYS = [120, 400, 1000]; // milliseconds

async function send(name, body, signal) {
  const options = {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Maskwright-Token": token() },
    body: JSON.stringify(body),
    signal,
  };
  for (const wait of RETRY_DELAYS) {
    try {
      return await call(name, options);
    } catch (error) {
      if (!BUSY_STATUSES.has(error.status)) throw error;
      await pause(wait, signal);
    }
  }
  return call(name, options);
}

async function call(name, options) {
  let response;
  try {
    response = await fetch(`/api/${name}`, { cache: "no-store", credentials: "omit", ...options });
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new ApiError("The server does not respond. Run maskwright explore again.", {
      kind: "Offline",
    });
  }
  if (response.ok) return response;
  throw await errorOf(response);
}

async function errorOf(response) {
  const { status } = response;
  try {
    const { error } = await response.json();
    return new ApiError(error.message, { at: error.at, kind: error.kind, status });
  } catch {
    return new ApiError(`The server answered with status ${status}.`, { status });
  }
}

async function read(response) {
  try {
    return await response.json();
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new ApiError("The response of the server is not JSON.", { status: response.status });
  }
}

function token() {
  return document.querySelector('meta[name="maskwright-token"]')?.content ?? "";
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("Aborted", "AbortError"));
    });
  });
}
