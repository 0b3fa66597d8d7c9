// What `db.coll.find()` returns: a find command that is sent when the first document is asked for.

function DBQuery(collection, filter, projection) {
  this._collection = collection;
  this._command = {find: collection.getName(), filter: filter === undefined || filter === null ? {} : filter};
  if (projection && Object.keys(projection).length) this._command.projection = projection;
  this._cursor = null;
  this._pretty = false;
}
DBQuery.shellBatchSize = 20;

for (const [method, field] of Object.entries({
  sort: 'sort', skip: 'skip', batchSize: 'batchSize', hint: 'hint', comment: 'comment', maxTimeMS: 'maxTimeMS',
  min: 'min', max: 'max', collation: 'collation', returnKey: 'returnKey', showRecordId: 'showRecordId',
  allowDiskUse: 'allowDiskUse', noCursorTimeout: 'noCursorTimeout', let: 'let',
})) {
  DBQuery.prototype[method] = function (value) {
    if (this._cursor) throw new Error('query already executed');
    this._command[field] = value === undefined ? true : value;
    return this;
  };
}
// Waits for data unless told not to.
DBQuery.prototype.tailable = function (awaitData) {
  if (this._cursor) throw new Error('query already executed');
  this._command.tailable = true;
  if (awaitData === undefined || awaitData === null || awaitData) this._command.awaitData = true;
  return this;
};
DBQuery.prototype.limit = function (count) {
  if (this._cursor) throw new Error('query already executed');
  delete this._command.limit;
  delete this._command.singleBatch;
  if (count) this._command.limit = Math.abs(count);
  if (count < 0) this._command.singleBatch = true;
  return this;
};
DBQuery.prototype.readPref = function (mode, tags, hedge) {
  if (this._cursor) throw new Error('query already executed');
  this._command.$readPreference = readPreference(mode, tags, hedge);
  return this;
};
DBQuery.prototype.readConcern = function (level) {
  if (this._cursor) throw new Error('query already executed');
  this._command.readConcern = readConcern(level);
  return this;
};
DBQuery.prototype.pretty = function () { this._pretty = true; return this; };

DBQuery.prototype._run = function () {
  if (!this._cursor) this._cursor = this._collection._db._cursor(this._command);
  return this._cursor;
};
for (const method of ['hasNext', 'next', 'objsLeftInBatch', 'toArray', 'itcount', 'forEach', 'map', 'close']) {
  DBQuery.prototype[method] = function (...given) { return this._run()[method](...given); };
}
DBQuery.prototype[Symbol.iterator] = function () { return this._run()[Symbol.iterator](); };
DBQuery.prototype.length = function () { return this.toArray().length; };
DBQuery.prototype.count = function (applyLimits) {
  const command = {count: this._command.find, query: this._command.filter};
  for (const field of ['hint', 'collation', 'maxTimeMS', 'readConcern', '$readPreference']) {
    if (this._command[field] !== undefined) command[field] = this._command[field];
  }
  if (applyLimits) {
    if (this._command.limit) command.limit = this._command.limit;
    if (this._command.skip) command.skip = this._command.skip;
  }
  return Number(okOrThrow(this._collection._db.runCommand(command)).n);
};
DBQuery.prototype.size = function () { return this.count(true); };
DBQuery.prototype.explain = function (verbosity) {
  const {$readPreference, ...explain} = this._command;
  return this._collection._db.runCommand(withoutUndefined({explain, verbosity: explainVerbosity(verbosity), $readPreference}));
};
DBQuery.prototype.shellPrint = function () {
  if (!this._pretty) return printCursor(this);
  const cursor = this;
  printCursor({
    hasNext: () => cursor.hasNext(),
    next: () => ({tojson: ((document) => () => tojson(document))(cursor.next())}),
  });
};
DBQuery.prototype.help = function () {
  print('find(<filter>, <projection>) modifiers:');
  for (const name of Object.keys(DBQuery.prototype).filter((name) => !name.startsWith('_')).sort()) print('\t.' + name + '()');
};

function explainVerbosity(verbosity) {
  if (verbosity === undefined || verbosity === false) return 'queryPlanner';
  return verbosity === true ? 'allPlansExecution' : verbosity;
}
