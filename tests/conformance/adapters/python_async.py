"""The adapter of the Python client for asyncio, which shares the commands of the other that do not wait."""

import asyncio
import json
import sys
import time

import python_sync as shared
import tidegate


async def make(given):
    return shared.make(given, tidegate.AsyncClient)


async def ask(given):
    attributes, options = shared.arguments(given)
    client, began = shared.CLIENTS[given["client"]], time.perf_counter_ns()
    try:
        decision = await getattr(client, given["do"])(given["domain"], attributes, **options)
    except Exception as error:
        return shared.raised(error, began)
    return shared.result(decision, began)


async def crowd(given):
    return {"all": await asyncio.gather(*map(ask, shared.callers(given)))}


async def busy(given):
    """Asks, and keeps the event loop busy before the request is written, and before the reply is read."""
    asked = asyncio.ensure_future(ask(given | {"do": "hit"}))
    for _ in range(2):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(given["busy_ms"] / 1_000)
    return await asked


async def work(given):
    ran = False
    try:
        async with shared.CLIENTS[given["client"]].limit(given["domain"], given["attributes"]):
            ran = True
            if given["fails"]:
                raise KeyError("of the application")
    except Exception as error:
        return {"ran": ran, "raised": type(error).__name__}
    return {"ran": ran}


async def fork(given):
    return await asyncio.to_thread(shared.fork, given, lambda one: asyncio.run(ask(one)))


async def main():
    lines = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        given = json.loads(line)
        function = globals().get(given["do"])
        if function is None and given["do"] in ("release", "log", "stats"):
            answer = getattr(shared, given["do"])(given)
        else:
            answer = await (function or ask)(given)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
