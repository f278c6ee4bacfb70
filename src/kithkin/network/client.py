"""The client app: a site's answers to Flower's messages.

Whatever goes wrong is told to the server in words, without paths of the site's disk, which its own log has.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from kithkin.errors import KithkinError
from kithkin.network.programs import say
from kithkin.network.site import Site
from kithkin.network.terms import terms_from

Sites = Callable[[Context], Site]
"""Finds the site that a message is for."""


def app_for(sites: Sites) -> ClientApp:
    app = ClientApp()

    def answer(message: Message, context: Context, do: Callable[[Site], RecordDict]) -> Message:
        try:
            site = sites(context)
        except Exception as e:
            log(e)
            return Message(
                Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "it cannot begin; its site.log says why"), reply_to=message
            )
        try:
            return Message(do(site), reply_to=message)
        except Exception as e:
            log(e)
            return Message(site.refuse(e), reply_to=message)

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        return answer(message, context, Site.hello)

    @app.train("round")
    def round(message: Message, context: Context) -> Message:
        return answer(message, context, lambda site: site.round(message.content))

    @app.evaluate("exam")
    def exam(message: Message, context: Context) -> Message:
        return answer(message, context, lambda site: site.examine(message.content))

    return app


def log(e: Exception) -> None:
    """All of it, in the site's own log, unless that is on a full disk, too."""
    with suppress(OSError):
        if isinstance(e, KithkinError):
            say(str(e))
        else:
            traceback.print_exception(e)


def _site_on_disk(context: Context) -> Site:
    return Site.at(Path(str(context.node_config["folder"])), terms_from(str(context.run_config["terms"])))


app = app_for(_site_on_disk)
