"""Every command with its arguments; what each does is imported when it is called."""

from nerve.deploy.commands import begin, hosts, hub, look, servers, tasks, upkeep
from nerve.deploy.commands.options import app

__all__ = ["app", "begin", "hosts", "hub", "look", "servers", "tasks", "upkeep"]
