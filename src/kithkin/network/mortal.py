"""Imported first of all by the process that a site's executor forks from, so that it dies with the executor.

A fork that is at work keeps that process from noticing by itself that nobody is there any more.
"""

from kithkin.network.programs import die_with_parent

die_with_parent()
