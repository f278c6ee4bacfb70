"""The client app: a site's answers to Flower's messages. Whatever goes wrong at a site is told to the server in words."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from kithkin.errors import KithkinError
from kithkin.network.papers import read_papers
from kithkin.network.site import Site
from kithkin.network.terms import terms_from

Sites = Callable[[Context], tuple[Site, int | None]]
"""Finds the site that a message is for, and the number that it claims."""


def app_for(sites: Sites) -> ClientApp:
    app = ClientApp()

    def answer(message: Message, context: Context, do: Callable[[Site, int | None], RecordDict]) -> Message:
        site, number = sites(context)
        try:
            return Message(do(site, number), reply_to=message)
        except KithkinError as e:
            return Message(site.refuse(e), reply_to=message)
        except Exception as e:
            traceback.print_exc()
            return Message(site.refuse(KithkinError(f"{site.name} failed: {type(e).__name__}: {e}.", "")), reply_to=message)

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        return answer(message, context, lambda site, number: site.hello(number))

    @app.train("round")
    def round(message: Message, context: Context) -> Message:
        return answer(message, context, lambda site, _: site.round(message.content))

    @app.evaluate("exam")
    def exam(message: Message, context: Context) -> Message:
        return answer(message, context, lambda site, _: site.examine(message.content))

    return app


def _site_on_disk(context: Context) -> tuple[Site, int | None]:
    folder = Path(str(context.node_config["folder"]))
    return Site.at(folder, terms_from(str(context.run_config["terms"]))), read_papers(folder).number


app = app_for(_site_on_disk)
