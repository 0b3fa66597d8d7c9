// Change streams: `db.coll.watch()`, `db.watch()`, `Mongo().watch()`.
//
// A stream asks the server for more when its batch is used up; the server waits a while for an event.
// One that was lost with its member is opened again behind the last event that was seen.

function ChangeStream(database, target, pipeline, options) {
  this._database = database;
  this._target = target;
  this._pipeline = pipeline === undefined ? [] : [].concat(pipeline);
  this._options = Object.assign({}, options);
  this._token = this._options.resumeAfter || this._options.startAfter;
  this._open(this._options);
}

const STREAM_OPTIONS = ['fullDocument', 'fullDocumentBeforeChange', 'resumeAfter', 'startAfter', 'startAtOperationTime',
  'allChangesForCluster', 'showExpandedEvents'];

ChangeStream.prototype._open = function (given) {
  const stage = {};
  for (const name of STREAM_OPTIONS) if (given[name] !== undefined) stage[name] = given[name];
  const command = {aggregate: this._target, pipeline: [{$changeStream: stage}, ...this._pipeline], cursor: {}};
  if (given.batchSize !== undefined) command.cursor.batchSize = given.batchSize;
  for (const name of ['comment', 'collation', 'readConcern', '$readPreference']) {
    if (given[name] !== undefined) command[name] = given[name];
  }
  const reply = okOrThrow(this._database._run(command));
  this._server = native.lastServer(this._database.getMongo()._id);
  this._started = reply.operationTime;
  this._take(reply.cursor, reply.cursor.firstBatch);
};

ChangeStream.prototype._take = function (cursor, batch) {
  this._id = cursor.id;
  this._collection = cursor.ns.slice(cursor.ns.indexOf('.') + 1);
  this._batch = batch;
  this._at = 0;
  this._behindBatch = cursor.postBatchResumeToken;
  if (batch.length === 0 && this._behindBatch) this._token = this._behindBatch;
};

// Whether another member, or the same one later, may go on.
function isResumable(error) {
  const labels = (error.reply && error.reply.errorLabels) || [];
  return error.code === undefined || error.code === 43 || labels.includes('ResumableChangeStreamError');
}

ChangeStream.prototype._again = function () {
  const {resumeAfter, startAfter, startAtOperationTime, ...rest} = this._options;
  const from = this._token ? {[startAfter && !this._seen ? 'startAfter' : 'resumeAfter']: this._token}
    : {startAtOperationTime: startAtOperationTime || this._started};
  this._open(Object.assign(rest, from));
};

ChangeStream.prototype._more = function () {
  const command = {getMore: this._id, collection: this._collection};
  if (this._options.batchSize) command.batchSize = this._options.batchSize;
  if (this._options.maxAwaitTimeMS !== undefined) command.maxTimeMS = this._options.maxAwaitTimeMS;
  try {
    const reply = okOrThrow(this._database._run(command, this._server));
    this._take(reply.cursor, reply.cursor.nextBatch);
  } catch (error) {
    if (!isResumable(error)) throw error;
    this._again();
  }
};

// An event if there is one now, or comes while the server waits for it; null otherwise.
ChangeStream.prototype.tryNext = function () {
  if (this._at >= this._batch.length && !this.isClosed()) this._more();
  if (this._at >= this._batch.length) return null;
  const event = this._batch[this._at++];
  this._seen = true;
  this._token = this._at === this._batch.length && this._behindBatch ? this._behindBatch : event._id;
  return event;
};
// As tryNext, without taking the event.
ChangeStream.prototype.hasNext = function () {
  if (this._at >= this._batch.length && !this.isClosed()) this._more();
  return this._at < this._batch.length;
};
// Waits for as long as it takes.
ChangeStream.prototype.next = function () {
  while (!this.hasNext()) if (this.isClosed()) throw new Error('the change stream is closed');
  return this.tryNext();
};
ChangeStream.prototype.isClosed = function () { return Number(this._id) === 0; };
ChangeStream.prototype.isExhausted = function () { return this.isClosed() && this._at >= this._batch.length; };
ChangeStream.prototype.getResumeToken = function () { return this._token; };
ChangeStream.prototype.objsLeftInBatch = function () { return this._batch.length - this._at; };
ChangeStream.prototype.close = function () {
  if (!this.isClosed()) this._database._run({killCursors: this._collection, cursors: [this._id]}, this._server);
  this._id = NumberLong(0);
  this._batch = [];
};
ChangeStream.prototype[Symbol.iterator] = function* () { while (!this.isExhausted()) yield this.next(); };
ChangeStream.prototype.forEach = function (visit) { for (const event of this) visit(event); };
ChangeStream.prototype.shellPrint = function () {
  for (let shown = 0; shown < DBQuery.shellBatchSize && this.hasNext(); shown++) print(tojson(this.tryNext(), '', true));
};
ChangeStream.prototype.tojson = ChangeStream.prototype.toString = function () { return '[change stream]'; };

DBCollection.prototype.watch = function (pipeline, options) {
  return new ChangeStream(this._db, this._shortName, pipeline, options);
};
DB.prototype.watch = function (pipeline, options) { return new ChangeStream(this, 1, pipeline, options); };
Mongo.prototype.watch = function (pipeline, options) {
  return new ChangeStream(this.getDB('admin'), 1, pipeline, Object.assign({allChangesForCluster: true}, options));
};
