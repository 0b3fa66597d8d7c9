// What is added to commands on their way: read preference, read and write concern, sessions.
//
// The nearest word counts: the command's own, then the session's, then the connection's.

const READ_MODES = ['primary', 'primaryPreferred', 'secondary', 'secondaryPreferred', 'nearest'];
const READ_LEVELS = ['local', 'available', 'majority', 'linearizable', 'snapshot'];

function named(...names) { return Object.fromEntries(names.map((name) => [name, true])); }

// Commands that a secondary may answer.
const READS = named('find', 'count', 'distinct', 'aggregate', 'collStats', 'dbStats', 'listCollections', 'listIndexes',
  'listDatabases', 'mapReduce', 'mapreduce', 'explain');
// Commands that take a read concern from the connection or the session.
const READS_WITH_CONCERN = named('find', 'count', 'distinct', 'aggregate');
// What a member says of itself: of a whole set, whoever can answer does.
const ABOUT_MEMBERS = named('hello', 'isMaster', 'ismaster', 'ping', 'buildInfo', 'replSetGetStatus', 'replSetGetConfig');
const WRITES = named('insert', 'update', 'delete', 'findAndModify', 'findandmodify', 'create', 'drop', 'dropDatabase',
  'createIndexes', 'dropIndexes', 'renameCollection', 'collMod');

function commandName(command) { return Object.keys(command)[0]; }

function writesItsOutput(command) {
  if (Array.isArray(command.pipeline)) {
    return command.pipeline.some((stage) => stage && (stage.$out !== undefined || stage.$merge !== undefined));
  }
  return command.out !== undefined && !(typeof command.out === 'object' && command.out && command.out.inline);
}
function isRead(command) { return READS[commandName(command)] === true && !writesItsOutput(command); }
function isWrite(command) {
  return WRITES[commandName(command)] === true || (READS[commandName(command)] === true && writesItsOutput(command));
}

function readPreference(mode, tags, hedge) {
  if (!READ_MODES.includes(mode)) {
    throw new Error('Expected a read preference mode, one of ' + READ_MODES.join(', ') + ', but got ' + tojson(mode));
  }
  if (tags !== undefined && tags !== null && !Array.isArray(tags)) {
    throw new Error('Expected an array of tag sets, as [{dc: "east"}, {}], but got ' + tojson(tags));
  }
  const tagged = Array.isArray(tags) && tags.length > 0;
  if (mode === 'primary' && tagged) throw new Error('Can not supply tagSet with readPref mode primary');
  if (mode === 'primary' && hedge && hedge.enabled) throw new Error('Cannot enable hedging with readPref mode "primary"');
  return withoutUndefined({mode, tags: tagged ? tags : undefined, hedge});
}

// A session's or a command's own preference, which may also be just a mode.
function givenReadPreference(given) {
  if (typeof given === 'string') return readPreference(given);
  const {mode, tags, tagSet, hedge, maxStalenessSeconds} = given || {};
  return withoutUndefined(Object.assign(readPreference(mode, tags || tagSet, hedge), {maxStalenessSeconds}));
}

function readConcern(given) {
  const concern = typeof given === 'string' ? {level: given} : given;
  if (!concern || typeof concern !== 'object' || (concern.level !== undefined && !READ_LEVELS.includes(concern.level))) {
    throw new Error('Expected a read concern level, one of ' + READ_LEVELS.join(', ') + ', but got ' + tojson(given));
  }
  return concern;
}

function writeConcern(given, wtimeout, j) {
  const concern = typeof given === 'object' && given !== null ? given : withoutUndefined({w: given, wtimeout, j});
  const known = named('w', 'wtimeout', 'wtimeoutMS', 'j', 'fsync');
  const wrong = Object.keys(concern).find((name) => !known[name]);
  if (Object.keys(concern).length === 0 || wrong || !['number', 'string', 'object', 'undefined'].includes(typeof concern.w)) {
    throw new Error('Expected a write concern, as {w: "majority", wtimeout: 1000}, but got ' + tojson(given));
  }
  return concern;
}

// Connections, databases and collections have a write concern for what they are used for.
for (const type of [Mongo, DB]) {
  type.prototype.setWriteConcern = function (...given) { this._defaults.writeConcern = writeConcern(...given); };
  type.prototype.getWriteConcern = function () { return this._defaults.writeConcern; };
  type.prototype.unsetWriteConcern = function () { delete this._defaults.writeConcern; };
}

Mongo.prototype.setReadPref = function (mode, tagSet, hedge) { this._defaults.readPreference = readPreference(mode, tagSet, hedge); };
Mongo.prototype.getReadPref = function () { return this._defaults.readPreference || null; };
Mongo.prototype.getReadPrefMode = function () { return (this._preference() || {mode: 'primary'}).mode; };
Mongo.prototype.getReadPrefTagSet = function () { return (this._preference() || {}).tags; };
Mongo.prototype.setReadConcern = function (level) {
  if (level) this._defaults.readConcern = readConcern(level); else delete this._defaults.readConcern;
};
Mongo.prototype.getReadConcern = function () { return (this._defaults.readConcern || {}).level; };
Mongo.prototype._preference = function () {
  return this._defaults.readPreference || (this.slaveOk ? {mode: 'secondaryPreferred'} : undefined);
};

function isLater(time, than) {
  return time !== undefined && (than === undefined || bsonWoCompare({t: time}, {t: than}) > 0);
}

// A session. Its id comes from the driver, which tells the server; what it promises is added here.
function DriverSession(mongo, options) {
  const started = native.startSession(mongo._id);
  this._mongo = mongo;
  this._number = started.number;
  this._sessionId = started.id;
  this._options = options;
  this._ended = false;
  for (const name of Object.keys(this)) Object.defineProperty(this, name, {enumerable: false});
}

function sessionOptions(given) {
  const known = {
    causalConsistency: (value) => checkedFlag('causalConsistency', value), retryWrites: (value) => checkedFlag('retryWrites', value),
    snapshot: (value) => checkedFlag('snapshot', value), readPreference: givenReadPreference, readConcern, writeConcern,
    defaultTransactionOptions: (value) => value,
  };
  const options = {};
  for (const [name, value] of Object.entries(given || {})) {
    if (!Object.hasOwn(known, name)) throw new Error('unknown session option ' + name);
    if (value !== undefined && value !== null) options[name] = known[name](value);
  }
  if (options.snapshot && options.causalConsistency) throw new Error('A session is causally consistent or reads a snapshot, not both');
  if (options.causalConsistency === undefined) options.causalConsistency = !options.snapshot;
  return options;
}
function checkedFlag(name, value) {
  if (typeof value !== 'boolean') throw new Error('Expected true or false for ' + name + ', but got ' + tojson(value));
  return value;
}

Mongo.prototype.startSession = function (options) { return new DriverSession(this, sessionOptions(options)); };
DB.prototype.getSession = function () { return this._session; };

DriverSession.prototype.getClient = function () { return this._mongo; };
DriverSession.prototype.getDatabase = function (name) { return DB._named(this._mongo, name, this); };
DriverSession.prototype.getSessionId = function () { return this._sessionId; };
DriverSession.prototype.getOperationTime = function () { return this._operationTime; };
DriverSession.prototype.getClusterTime = function () { return this._clusterTime; };
DriverSession.prototype.advanceOperationTime = function (time) {
  if (!(time instanceof Timestamp)) throw new Error('Expected a Timestamp, but got ' + tojson(time));
  this._observe(time);
};
DriverSession.prototype.advanceClusterTime = function (time) {
  if (!time || !(time.clusterTime instanceof Timestamp) || typeof time.signature !== 'object') {
    throw new Error('Expected a cluster time, as getClusterTime() returns it, but got ' + tojson(time));
  }
  this._mayBeUsed();
  this._observe(undefined, time);
  native.advanceClusterTime(this._number, time);
};
DriverSession.prototype.getOptions = function () {
  const options = this._options;
  return {
    getReadPreference: () => options.readPreference, setReadPreference: (value) => { options.readPreference = givenReadPreference(value); },
    getReadConcern: () => options.readConcern, setReadConcern: (value) => { options.readConcern = readConcern(value); },
    getWriteConcern: () => options.writeConcern, setWriteConcern: (value) => { options.writeConcern = writeConcern(value); },
    isCausalConsistency: () => options.causalConsistency, shouldRetryWrites: () => !!options.retryWrites,
    isSnapshot: () => !!options.snapshot, tojson: () => tojson(options),
  };
};
DriverSession.prototype.hasEnded = function () { return this._ended; };
DriverSession.prototype.endSession = function () {
  if (this._ended) return;
  // The server forgets a session by itself, too: who cannot be reached need not be told.
  try {
    native.runCommand(this._mongo._id, 'admin', {endSessions: [this._sessionId]}, {mode: 'primaryPreferred'}, undefined, this._number);
  } catch (error) {
    if (!(error instanceof Error)) throw error;
  }
  native.endSession(this._number);
  this._ended = true;
};
DriverSession.prototype._mayBeUsed = function () {
  if (this._ended) throw new Error('Cannot use a session that has ended');
};
for (const method of ['startTransaction', 'withTransaction']) {
  DriverSession.prototype[method] = function () {
    this._mayBeUsed();
    throw commandError({ok: 0, errmsg: 'multi-document transactions are not supported', code: 238, codeName: 'NotImplemented'});
  };
}
for (const method of ['commitTransaction', 'abortTransaction']) {
  DriverSession.prototype[method] = function () {
    throw commandError({ok: 0, errmsg: 'There is no transaction started on this session: multi-document transactions are not supported',
      code: 251, codeName: 'NoSuchTransaction'});
  };
}
DriverSession.prototype.toString = DriverSession.prototype.tojson = function () { return 'session ' + tojson(this._sessionId, '', true); };

DriverSession.prototype._observe = function (operationTime, clusterTime) {
  if (isLater(operationTime, this._operationTime)) Object.defineProperty(this, '_operationTime', {value: operationTime, configurable: true});
  const known = this._clusterTime && this._clusterTime.clusterTime;
  if (clusterTime && isLater(clusterTime.clusterTime, known)) {
    Object.defineProperty(this, '_clusterTime', {value: clusterTime, configurable: true});
  }
};

// The read concern of a command in this session.
DriverSession.prototype._readConcern = function (command, concern) {
  if (this._options.snapshot && (READS_WITH_CONCERN[commandName(command)] || isWrite(command))) {
    return withoutUndefined({level: 'snapshot', atClusterTime: this._snapshotTime});
  }
  if (!READS_WITH_CONCERN[commandName(command)]) return concern;
  if (!this._options.causalConsistency || this._operationTime === undefined) return concern;
  return Object.assign({}, concern, {afterClusterTime: this._operationTime});
};
DriverSession.prototype._noteSnapshot = function (reply) {
  const time = reply.atClusterTime || (reply.cursor && reply.cursor.atClusterTime);
  if (this._options.snapshot && time && this._snapshotTime === undefined) Object.defineProperty(this, '_snapshotTime', {value: time});
};

// The command with everything added that it does not say itself.
Mongo.prototype._completed = function (command, session) {
  const own = session ? session._options : {};
  const added = {};
  let concern = command.readConcern;
  if (concern === undefined && READS_WITH_CONCERN[commandName(command)]) concern = own.readConcern || this._defaults.readConcern;
  if (session) concern = session._readConcern(command, concern);
  if (concern !== command.readConcern) added.readConcern = concern;
  if (command.writeConcern === undefined && isWrite(command)) {
    const wanted = own.writeConcern || this._defaults.writeConcern;
    if (wanted) added.writeConcern = wanted;
  }
  return Object.keys(added).length ? Object.assign({}, command, added) : command;
};

Mongo.prototype._route = function (command, session) {
  if (command.$readPreference !== undefined) return givenReadPreference(command.$readPreference);
  if (isRead(command)) return (session && session._options.readPreference) || this._preference();
  return this._defaults.set && ABOUT_MEMBERS[commandName(command)] ? {mode: 'primaryPreferred'} : undefined;
};

// Whether every statement can be repeated without being done twice.
function isRetryable(command) {
  const concern = command.writeConcern;
  if (concern && concern.w === 0) return false;
  switch (commandName(command)) {
    case 'insert': case 'findAndModify': case 'findandmodify': return true;
    case 'update': return command.updates.every((update) => !update.multi);
    case 'delete': return command.deletes.every((one) => Number(one.limit) === 1);
    default: return false;
  }
}

Mongo.prototype._takesRetries = function () {
  if (this._retries === undefined) {
    const hello = this._sent('admin', {hello: 1}, {mode: 'nearest'});
    Object.defineProperty(this, '_retries', {value: !!(hello.setName || hello.msg === 'isdbgrid')});
  }
  return this._retries;
};

Mongo.prototype._sent = function (database, command, preference, server, session) {
  const reply = native.runCommand(this._id, database, command, preference, server, session);
  // The times of the cluster are there to be read, and not printed with every answer.
  for (const name of ['operationTime', '$clusterTime']) {
    if (reply[name] !== undefined) Object.defineProperty(reply, name, {value: reply[name], enumerable: false});
  }
  return reply;
};

Mongo.prototype.runCommand = function (database, command, session, server) {
  if (session) session._mayBeUsed();
  const preference = server === undefined ? this._route(command, session) : undefined;
  let sent = this._completed(command, session);
  if (sent.$readPreference !== undefined) {
    sent = Object.assign({}, sent);
    delete sent.$readPreference;
  }
  const asked = session ? session._options.retryWrites : this._defaults.retryWrites;
  const retries = asked && sent.txnNumber === undefined && isRetryable(sent) && this._takesRetries();
  const carrier = session || this._ownSession();
  if (retries) sent = Object.assign({}, sent, {txnNumber: NumberLong(++this._own.statements)});
  // The driver refuses a session here, though it would matter to nobody.
  const number = carrier && commandName(sent) !== 'killCursors' ? carrier._number : undefined;
  const send = () => this._sent(database, sent, preference, server, number);
  let reply;
  try {
    reply = send();
  } catch (error) {
    if (!retries || !error.connectionLost) throw error;
    reply = send();
  }
  if (retries && (reply.errorLabels || []).includes('RetryableWriteError')) reply = send();
  if (session) {
    session._observe(reply.operationTime, reply.$clusterTime);
    session._noteSnapshot(reply);
  }
  return reply;
};

// What is done outside of the script's sessions: a cursor, and a write that is repeated, stay in the
// session that they began in. Arbiters, for one, have no sessions.
Mongo.prototype._ownSession = function () {
  if (!this._own.session && this._defaults.sessions) this._own.session = new DriverSession(this, {});
  return this._own.session;
};
