"""Lets a client say itself what pymongo says for it: its session, and how far time has come."""

from pymongo import MongoClient
from pymongo.errors import OperationFailure
from pymongo.synchronous.client_session import ClientSession
from pymongo.synchronous.pool import Connection

PASSWORD = "a long secret"

tell_time, apply_session = Connection.send_cluster_time, ClientSession._apply_to


def own_time(connection, command, session, client):
    if "$clusterTime" not in command:
        tell_time(connection, command, session, client)


def own_session(session, command, *arguments):
    if "lsid" not in command:
        apply_session(session, command, *arguments)


Connection.send_cluster_time = own_time
ClientSession._apply_to = own_session


def connect(host, user=None, **options):
    if user is not None:
        options |= {"username": user, "password": PASSWORD}
    return MongoClient(host, directConnection=True, **options)


def make_user(root, name, *roles):
    if not root.admin.command("usersInfo", name)["users"]:
        root.admin.command("createUser", name, pwd=PASSWORD, roles=list(roles))


def code(client, database, command):
    try:
        client[database].command(command)
    except OperationFailure as error:
        return error.code
    return 0
