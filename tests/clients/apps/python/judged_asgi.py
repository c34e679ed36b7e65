"""asgi_app with X-Judged-Us, the time of the middleware before the application is entered."""

import time

from asgi_app import answer
from asgi_app import app as limited


async def entered(scope, receive, send):
    judged = time.monotonic() - scope["began"]

    async def saying(message):
        if message["type"] == "http.response.start":
            fields = [(b"x-judged-us", b"%d" % int(judged * 1e6))]
            message = {**message, "headers": [*message["headers"], *fields]}
        await send(message)

    await answer(scope, receive, saying)


if limited is answer:
    limited = entered
else:
    limited.app = entered


async def app(scope, receive, send):
    await limited({**scope, "began": time.monotonic()}, receive, send)
