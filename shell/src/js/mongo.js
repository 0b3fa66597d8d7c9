// Connections and databases. `native` is what the Rust side offers; see shell/src/natives.rs.

function Mongo(address) {
  if (!(this instanceof Mongo)) return new Mongo(address);
  Object.defineProperty(this, '_id', {value: native.connect(address === undefined ? '127.0.0.1:27017' : String(address))});
  this.host = native.address(this._id);
  Object.defineProperty(this, 'slaveOk', {value: false, writable: true});
  // What the address asks for, until it is set otherwise: see session.js.
  Object.defineProperty(this, '_defaults', {value: native.defaults(this._id)});
  Object.defineProperty(this, '_own', {value: {statements: 0}});
}

Mongo.prototype.getDB = function (name) {
  return DB._named(this, name);
};
Mongo.prototype.getDatabase = Mongo.prototype.getDB;
Mongo.prototype.adminCommand = function (command) {
  return this.runCommand('admin', commandDocument(command));
};
Mongo.prototype.getDBs = function () {
  return okOrThrow(this.adminCommand({listDatabases: 1}));
};
Mongo.prototype.getDBNames = function () {
  return this.getDBs().databases.map((database) => database.name);
};
Mongo.prototype.setSlaveOk = function (value) {
  this.slaveOk = value === undefined ? true : !!value;
};
Mongo.prototype.setSecondaryOk = Mongo.prototype.setSlaveOk;
Mongo.prototype.isMongos = function () {
  return this.adminCommand({isMaster: 1}).msg === 'isdbgrid';
};
Mongo.prototype.toString = Mongo.prototype.tojson = function () {
  return 'connection to ' + this.host;
};

function connect(address) {
  const [host, name] = splitAddress(String(address));
  return new Mongo(host).getDB(name);
}

// `host:port/database` or `set/host:port,host:port/database`.
function splitAddress(address) {
  if (/^mongodb(\+srv)?:\/\//.test(address)) {
    const name = /^mongodb(?:\+srv)?:\/\/[^/]+\/([^?]*)/.exec(address);
    return [address, (name && name[1]) || 'test'];
  }
  const parts = address.split('/');
  const hosts = parts.length > 1 && /[:,]/.test(parts[1]) ? parts.splice(0, 2).join('/') : parts.shift();
  return [hosts, parts.join('/') || 'test'];
}

function commandDocument(command, extra) {
  const document = typeof command === 'string' ? {[command]: 1} : command;
  return extra === undefined ? document : Object.assign({}, document, extra);
}

function DB(mongo, name, session) {
  // Users who log in with certificates are in $external.
  if (typeof name !== 'string' || name === '' || (name !== '$external' && /[\0 "$.\\/]/.test(name))) {
    throw new Error('[' + name + '] is not a valid database name');
  }
  Object.defineProperty(this, '_mongo', {value: mongo});
  Object.defineProperty(this, '_name', {value: name});
  Object.defineProperty(this, '_session', {value: session});
  Object.defineProperty(this, '_defaults', {value: {}});
}

// `db.posts` is the collection of that name, unless the database has a method or field called so.
DB._named = function (mongo, name, session) {
  return new Proxy(new DB(mongo, name, session), {
    get(database, key, proxy) {
      if (typeof key === 'symbol' || key in database) return Reflect.get(database, key, proxy);
      return database.getCollection(key);
    },
  });
};

DB.prototype.getName = function () { return this._name; };
DB.prototype.getMongo = function () { return this._mongo; };
DB.prototype.getSiblingDB = function (name) { return DB._named(this._mongo, name, this._session); };
DB.prototype.getSisterDB = DB.prototype.getSiblingDB;
DB.prototype.getCollection = function (name) { return DBCollection._named(this, name); };
DB.prototype.toString = DB.prototype.tojson = function () { return this._name; };

DB.prototype.runCommand = function (command, extra) {
  return this._run(commandDocument(command, extra));
};
DB.prototype._run = function (command, server) {
  const wanted = this._defaults.writeConcern;
  if (wanted && command.writeConcern === undefined && isWrite(command)) command = Object.assign({}, command, {writeConcern: wanted});
  return this._mongo.runCommand(this._name, command, this._session, server);
};
DB.prototype._adminCommand = DB.prototype.adminCommand = function (command, extra) {
  return this._mongo.runCommand('admin', commandDocument(command, extra), this._session);
};
DB.prototype._cursor = function (command) {
  return new CommandCursor(this, okOrThrow(this._run(command)));
};

DB.prototype.getCollectionInfos = function (filter, options) {
  const command = Object.assign({listCollections: 1, filter: filter || {}}, options);
  return this._cursor(command).toArray()
    .sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
};
DB.prototype.getCollectionNames = function () {
  return this.getCollectionInfos({}, {nameOnly: true}).map((info) => info.name);
};
DB.prototype.createCollection = function (name, options) {
  return this.runCommand(Object.assign({create: name}, options));
};
DB.prototype.createView = function (name, source, pipeline, options) {
  return this.runCommand(Object.assign({create: name, viewOn: source, pipeline: [].concat(pipeline)}, options));
};
DB.prototype.dropDatabase = function (writeConcern) {
  return this.runCommand(Object.assign({dropDatabase: 1}, writeConcern && {writeConcern}));
};
DB.prototype.aggregate = function (pipeline, options) {
  return this._cursor(Object.assign({aggregate: 1, pipeline: [].concat(pipeline), cursor: {}}, options));
};
DB.prototype.stats = function (scale) {
  return this.runCommand(Object.assign({dbStats: 1}, typeof scale === 'object' ? scale : {scale: scale || 1}));
};
DB.prototype.version = function () { return this.serverBuildInfo().version; };
DB.prototype.serverBuildInfo = function () { return this._adminCommand({buildInfo: 1}); };
DB.prototype.serverStatus = function (options) { return this._adminCommand(Object.assign({serverStatus: 1}, options)); };
DB.prototype.serverCmdLineOpts = function () { return this._adminCommand({getCmdLineOpts: 1}); };
DB.prototype.hostInfo = function () { return this._adminCommand({hostInfo: 1}); };
DB.prototype.hello = function () { return this.runCommand({hello: 1}); };
DB.prototype.isMaster = function () { return this.runCommand({isMaster: 1}); };
DB.prototype.currentOp = function (filter) {
  return this._adminCommand(Object.assign({currentOp: 1}, filter === true ? {$all: true} : filter));
};
DB.prototype.currentOP = DB.prototype.currentOp;
DB.prototype.killOp = function (op) { return this._adminCommand({killOp: 1, op}); };
DB.prototype.killOP = DB.prototype.killOp;
DB.prototype.shutdownServer = function (options) {
  return this._adminCommand(Object.assign({shutdown: 1}, options));
};
DB.prototype.listCommands = function () {
  const commands = okOrThrow(this.runCommand({listCommands: 1})).commands;
  for (const name of Object.keys(commands).sort()) print(name + ': ' + (commands[name].help || ''));
};
DB.prototype.getLastErrorObj = function (w, wtimeout, j) {
  const command = {getLastError: 1};
  if (w !== undefined) command.w = w;
  if (wtimeout !== undefined) command.wtimeout = wtimeout;
  if (j !== undefined) command.j = j;
  return okOrThrow(this.runCommand(command));
};
DB.prototype.getLastError = function (w, wtimeout, j) { return this.getLastErrorObj(w, wtimeout, j).err; };
DB.prototype.setSlaveOk = function (value) { this._mongo.setSlaveOk(value); };
DB.prototype.setSecondaryOk = DB.prototype.setSlaveOk;
DB.prototype.getProfilingStatus = function () { return okOrThrow(this.runCommand({profile: -1})); };
DB.prototype.getReplicationInfo = function () {
  const oplog = this.getSiblingDB('local').getCollection('oplog.rs');
  // Of a set without a primary any member's log will do.
  const $readPreference = {mode: 'primaryPreferred'};
  const [known] = oplog.getDB().getCollectionInfos({name: 'oplog.rs'}, {$readPreference});
  if (!known) return {errmsg: 'replication not detected: there is no local.oplog.rs'};
  const end = (direction) => oplog.find().sort({$natural: direction}).limit(1).readPref('primaryPreferred').toArray()[0];
  const first = end(1), last = end(-1);
  if (!first || !last) return {errmsg: 'local.oplog.rs is empty or missing'};
  const sizes = okOrThrow(oplog.stats({$readPreference}));
  const megabytes = (bytes) => Math.round(Number(bytes || 0) / 1048576 * 100) / 100;
  const timeDiff = last.ts.getTime() - first.ts.getTime();
  return {
    logSizeMB: megabytes(sizes.maxSize),
    usedMB: megabytes(sizes.size),
    timeDiff,
    timeDiffHours: Math.round(timeDiff / 36) / 100,
    tFirst: new Date(first.ts.getTime() * 1000).toString(),
    tLast: new Date(last.ts.getTime() * 1000).toString(),
    now: new Date().toString(),
  };
};

DB.prototype.printCollectionStats = function (scale) {
  for (const name of this.getCollectionNames()) {
    print(name);
    printjson(this.getCollection(name).stats(scale));
    print('---');
  }
};
DB.prototype.printShardingStatus = function (verbose) {
  printShardingStatus(this.getSiblingDB('config'), verbose);
};
DB.prototype.printReplicationInfo = function () {
  const hello = this.hello();
  if (hello.arbiterOnly) return print('cannot provide replication status from an arbiter.');
  const info = this.getReplicationInfo();
  if (info.errmsg) return printjson(info);
  print('configured oplog size:   ' + info.logSizeMB + 'MB');
  print('log length start to end: ' + info.timeDiff + 'secs (' + info.timeDiffHours + 'hrs)');
  print('oplog first event time:  ' + info.tFirst);
  print('oplog last event time:   ' + info.tLast);
  print('now:                     ' + info.now);
};
DB.prototype.printSecondaryReplicationInfo = function () {
  const status = okOrThrow(this.adminCommand({replSetGetStatus: 1}));
  const bearing = status.members.filter((member) => member.health !== 0 && member.optimeDate && member.optimeDate.getTime() > 0);
  const primary = bearing.find((member) => member.state === 1);
  const freshest = Math.max(...bearing.map((member) => member.optimeDate.getTime()));
  const against = primary ? primary.optimeDate.getTime() : freshest;
  for (const member of status.members) {
    if (member.state === 1 || member.state === 7) continue;
    print('source: ' + member.name);
    if (!bearing.includes(member)) {
      print('\tno replication info, yet.  State: ' + member.stateStr);
      continue;
    }
    print('\tsyncedTo: ' + member.optimeDate);
    const behind = Math.max(0, Math.round((against - member.optimeDate.getTime()) / 1000));
    const whom = primary ? 'primary' : 'freshest member (no primary available at the moment)';
    print('\t' + behind + ' secs (' + Math.round(behind / 36) / 100 + ' hrs) behind the ' + whom);
  }
};
DB.prototype.printSlaveReplicationInfo = DB.prototype.printSecondaryReplicationInfo;
DB.prototype.help = function () {
  print('DB methods:');
  for (const name of Object.keys(DB.prototype).filter((name) => !name.startsWith('_')).sort()) print('\tdb.' + name + '()');
};

// A cursor over a command's reply: the first batch, then getMore.
function CommandCursor(database, reply) {
  this._database = database;
  this._id = reply.cursor.id;
  this._batch = reply.cursor.firstBatch;
  this._at = 0;
  this._collection = reply.cursor.ns.slice(reply.cursor.ns.indexOf('.') + 1);
  this._batchSize = undefined;
  // The cursor lives on the member that opened it.
  this._server = native.lastServer(database.getMongo()._id);
}
CommandCursor.prototype._exhausted = function () { return Number(this._id) === 0; };
CommandCursor.prototype.hasNext = function () {
  while (this._at >= this._batch.length) {
    if (this._exhausted()) return false;
    const command = {getMore: this._id, collection: this._collection};
    if (this._batchSize) command.batchSize = this._batchSize;
    const reply = okOrThrow(this._database._run(command, this._server));
    this._id = reply.cursor.id;
    this._batch = reply.cursor.nextBatch;
    this._at = 0;
  }
  return true;
};
CommandCursor.prototype.next = function () {
  if (!this.hasNext()) throw new Error('error hasNext: false');
  return this._batch[this._at++];
};
CommandCursor.prototype.objsLeftInBatch = function () { return this._batch.length - this._at; };
CommandCursor.prototype.toArray = function () {
  const all = [];
  while (this.hasNext()) all.push(this.next());
  return all;
};
CommandCursor.prototype.itcount = function () {
  let count = 0;
  for (; this.hasNext(); count++) this.next();
  return count;
};
CommandCursor.prototype.forEach = function (visit) { while (this.hasNext()) visit(this.next()); };
CommandCursor.prototype.map = function (change) {
  const all = [];
  while (this.hasNext()) all.push(change(this.next()));
  return all;
};
CommandCursor.prototype.close = function () {
  if (!this._exhausted()) this._database._run({killCursors: this._collection, cursors: [this._id]}, this._server);
  this._id = NumberLong(0);
  this._batch = [];
};
CommandCursor.prototype.shellPrint = function () { printCursor(this); };
CommandCursor.prototype[Symbol.iterator] = function* () { while (this.hasNext()) yield this.next(); };

// The cursor that `it` continues, twenty documents at a time.
let continued = null;
function printCursor(cursor) {
  let shown = 0;
  const most = DBQuery.shellBatchSize;
  for (; shown < most && cursor.hasNext(); shown++) print(tojson(cursor.next(), '', true));
  if (shown === most && cursor.hasNext()) {
    print('Type "it" for more');
    continued = cursor;
  } else {
    continued = null;
  }
}

function printjson(value) { print(tojson(value)); }
function printjsononeline(value) { print(tojson(value, '', true)); }
