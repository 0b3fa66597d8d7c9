// Collections: the commands of one namespace, with the shell's own results and old names.

function DBCollection(database, name) {
  if (typeof name !== 'string' || name === '') throw new Error('a collection needs a name');
  Object.defineProperty(this, '_db', {value: database});
  Object.defineProperty(this, '_shortName', {value: name});
  Object.defineProperty(this, '_fullName', {value: database.getName() + '.' + name});
  Object.defineProperty(this, '_defaults', {value: {}});
}

// `db.a.b` is the collection `a.b`, unless collections have a method called so.
DBCollection._named = function (database, name) {
  return new Proxy(new DBCollection(database, name), {
    get(collection, key, proxy) {
      if (typeof key === 'symbol' || key in collection) return Reflect.get(collection, key, proxy);
      return DBCollection._named(database, name + '.' + key);
    },
  });
};

DBCollection.prototype.getName = function () { return this._shortName; };
DBCollection.prototype.getFullName = function () { return this._fullName; };
DBCollection.prototype.getDB = function () { return this._db; };
DBCollection.prototype.getMongo = function () { return this._db.getMongo(); };
DBCollection.prototype.getCollection = function (name) { return this._db.getCollection(this._shortName + '.' + name); };
DBCollection.prototype.toString = DBCollection.prototype.tojson = function () { return this._fullName; };

DBCollection.prototype._command = function (name, fields) {
  const command = {[name]: this._shortName};
  for (const [key, value] of Object.entries(fields || {})) if (value !== undefined) command[key] = value;
  return this._run(command);
};
DBCollection.prototype._run = function (command) {
  const wanted = this._defaults.writeConcern;
  if (wanted && command.writeConcern === undefined && isWrite(command)) command = Object.assign({}, command, {writeConcern: wanted});
  return this._db.runCommand(command);
};
DBCollection.prototype.setWriteConcern = function (...given) { this._defaults.writeConcern = writeConcern(...given); };
DBCollection.prototype.getWriteConcern = function () { return this._defaults.writeConcern; };
DBCollection.prototype.unsetWriteConcern = function () { delete this._defaults.writeConcern; };
DBCollection.prototype.runCommand = function (command, extra) {
  if (typeof command === 'string') return this._command(command, extra);
  return this._run(command);
};

// Reading

DBCollection.prototype.find = function (filter, projection) {
  if (typeof filter === 'string') filter = {$where: filter};
  if (typeof filter === 'function') filter = {$where: filter};
  if (filter instanceof ObjectId) filter = {_id: filter};
  return new DBQuery(this, filter, projection);
};
DBCollection.prototype.findOne = function (filter, projection) {
  const cursor = this.find(filter, projection).limit(-1);
  return cursor.hasNext() ? cursor.next() : null;
};
DBCollection.prototype.count = function (query, options) {
  const reply = this._command('count', Object.assign({query: query || {}}, options));
  return Number(okOrThrow(reply).n);
};
DBCollection.prototype.countDocuments = function (filter, options) {
  const pipeline = [{$match: filter || {}}, {$group: {_id: 1, n: {$sum: 1}}}];
  const found = this.aggregate(pipeline, options).toArray();
  return found.length ? Number(found[0].n) : 0;
};
DBCollection.prototype.estimatedDocumentCount = function (options) { return this.count({}, options); };
DBCollection.prototype.distinct = function (key, query, options) {
  return okOrThrow(this._command('distinct', Object.assign({key, query: query || {}}, options))).values;
};
DBCollection.prototype.aggregate = function (pipeline, ...rest) {
  const stages = Array.isArray(pipeline) ? pipeline : [pipeline, ...rest].filter((stage) => stage !== undefined);
  const options = Array.isArray(pipeline) ? rest[0] || {} : {};
  if (options.explain) {
    const aggregate = Object.assign({aggregate: this._shortName, pipeline: stages, cursor: {}}, options);
    delete aggregate.explain;
    return this._db.runCommand({explain: aggregate, verbosity: explainVerbosity(options.explain === true ? undefined : options.explain)});
  }
  const command = Object.assign({aggregate: this._shortName, pipeline: stages, cursor: {}}, options);
  return this._db._cursor(command);
};
DBCollection.prototype.mapReduce = function (map, reduce, optionsOrOut) {
  const options = typeof optionsOrOut === 'string' ? {out: optionsOrOut} : optionsOrOut;
  if (!options || options.out === undefined) throw new Error('need an out argument');
  const reply = okOrThrow(this._command('mapreduce', Object.assign({map, reduce}, options)));
  return new MapReduceResult(this._db, reply);
};
DBCollection.prototype.explain = function (verbosity) {
  const collection = this, level = explainVerbosity(verbosity);
  const explained = (command) => collection._db.runCommand({explain: command, verbosity: level});
  return {
    find: (filter, projection) => ({
      finish() { return new DBQuery(collection, filter, projection).explain(level); },
      shellPrint() { printjson(this.finish()); },
    }),
    count: (query) => explained({count: collection._shortName, query: query || {}}),
    distinct: (key, query) => explained({distinct: collection._shortName, key, query: query || {}}),
    aggregate: (pipeline) => explained({aggregate: collection._shortName, pipeline, cursor: {}}),
    remove: (q, options) => explained({delete: collection._shortName, deletes: [{q, limit: options ? 1 : 0}]}),
    update: (q, u, options) => explained({update: collection._shortName, updates: [Object.assign({q, u}, options)]}),
  };
};

// Writing, with the results of the 2.6 shell and later

function WriteResult(counts, reply) {
  Object.assign(this, counts);
  const error = reply.writeErrors && reply.writeErrors[0];
  if (error) this.writeError = withoutUndefined({code: error.code, errmsg: error.errmsg, errInfo: error.errInfo});
  // The counts stand: the write was made, and the wait for others failed.
  if (reply.writeConcernError) this.writeConcernError = reply.writeConcernError;
}
WriteResult.prototype.hasWriteError = function () { return this.writeError !== undefined; };
WriteResult.prototype.getWriteError = function () { return this.writeError; };
WriteResult.prototype.hasWriteConcernError = function () { return this.writeConcernError !== undefined; };
WriteResult.prototype.getWriteConcernError = function () { return this.writeConcernError; };
WriteResult.prototype.tojson = WriteResult.prototype.toString = function () {
  return 'WriteResult(' + tojson(Object.assign({}, this)) + ')';
};

function BulkWriteResult(counts) { Object.assign(this, counts); }
BulkWriteResult.prototype.tojson = BulkWriteResult.prototype.toString = function () {
  return 'BulkWriteResult(' + tojson(Object.assign({}, this)) + ')';
};

function MapReduceResult(database, reply) {
  Object.assign(this, reply);
  Object.defineProperty(this, '_db', {value: database});
}
MapReduceResult.prototype._collection = function () {
  const result = this.result;
  return typeof result === 'object' ? this._db.getSiblingDB(result.db).getCollection(result.collection) : this._db.getCollection(result);
};
MapReduceResult.prototype.find = function (...given) { return this._collection().find(...given); };
MapReduceResult.prototype.drop = function () { return this._collection().drop(); };
MapReduceResult.prototype.convertToSingleObject = function () {
  const rows = this.results || this.find().toArray();
  return Object.fromEntries(rows.map((row) => [row._id, row.value]));
};

function withId(document) {
  return document._id === undefined ? Object.assign({_id: new ObjectId()}, document) : document;
}

// Most documents that the server takes in one command.
const BATCH_DOCUMENTS_MAX = 100000;

DBCollection.prototype.insert = function (given, options) {
  if (given === undefined || given === null) throw new Error('no object passed to insert!');
  const documents = [].concat(given).map(withId);
  const all = this._inserted(documents, options);
  if (!Array.isArray(given)) {
    return new WriteResult({nInserted: all.nInserted}, {writeErrors: all.writeErrors, writeConcernError: all.writeConcernErrors[0]});
  }
  return new BulkWriteResult(all);
};
// Inserts in as many commands as it takes; the counts of a bulk, whatever errors it met.
DBCollection.prototype._inserted = function (documents, options) {
  const ordered = !(options && options.ordered === false);
  const all = bulkCounts();
  for (let from = 0; from < documents.length; from += BATCH_DOCUMENTS_MAX) {
    const batch = documents.slice(from, from + BATCH_DOCUMENTS_MAX);
    const reply = okOrThrow(this._command('insert', Object.assign({documents: batch}, options, {ordered})));
    all.nInserted += Number(reply.n);
    for (const error of reply.writeErrors || []) {
      const at = from + Number(error.index);
      all.writeErrors.push(new WriteError(Object.assign({}, error, {index: at}), documents[at]));
    }
    if (reply.writeConcernError) all.writeConcernErrors.push(new WriteConcernError(reply.writeConcernError));
    if (ordered && all.writeErrors.length) break;
  }
  return all;
};
function bulkCounts() {
  return {writeErrors: [], writeConcernErrors: [], nInserted: 0, nUpserted: 0, nMatched: 0, nModified: 0, nRemoved: 0, upserted: []};
}
DBCollection.prototype.save = function (document, options) {
  if (document._id === undefined) return this.insert(document, options);
  return this.update({_id: document._id}, document, Object.assign({upsert: true}, options));
};
DBCollection.prototype.update = function (q, u, upsertOrOptions, multi) {
  const options = typeof upsertOrOptions === 'object' && upsertOrOptions !== null ? upsertOrOptions : {upsert: !!upsertOrOptions, multi: !!multi};
  const {writeConcern, ...rest} = options;
  const reply = this._command('update', {updates: [Object.assign({q, u}, rest)], writeConcern});
  if (!reply.ok) throw commandError(reply);
  const upserted = reply.upserted && reply.upserted[0];
  const counts = {nMatched: Number(reply.n) - (upserted ? 1 : 0), nUpserted: upserted ? 1 : 0, nModified: Number(reply.nModified)};
  if (upserted) counts._id = upserted._id;
  return new WriteResult(counts, reply);
};
DBCollection.prototype.remove = function (q, justOneOrOptions) {
  if (q === undefined) throw new Error('remove needs a query');
  const options = typeof justOneOrOptions === 'object' && justOneOrOptions !== null ? justOneOrOptions : {justOne: !!justOneOrOptions};
  const one = {q, limit: options.justOne ? 1 : 0};
  if (options.collation) one.collation = options.collation;
  const reply = this._command('delete', {deletes: [one], writeConcern: options.writeConcern});
  if (!reply.ok) throw commandError(reply);
  return new WriteResult({nRemoved: Number(reply.n)}, reply);
};

// The write methods of the drivers' common specification throw on a write error.
DBCollection.prototype.insertOne = function (document, options) {
  const kept = withId(document);
  const result = {acknowledged: true, insertedId: kept._id};
  throwWriteErrors(this._command('insert', Object.assign({documents: [kept]}, options)), result, () => kept);
  return result;
};
DBCollection.prototype.insertMany = function (documents, options) {
  const kept = documents.map(withId);
  const all = this._inserted(kept, options);
  if (all.writeErrors.length || all.writeConcernErrors.length) throw new BulkWriteError(all);
  return {acknowledged: true, insertedIds: kept.map((document) => document._id)};
};
DBCollection.prototype._updated = function (q, u, multi, options) {
  const {writeConcern, ...rest} = options || {};
  const operation = Object.assign({q, u, multi}, rest);
  const reply = okOrThrow(this._command('update', {updates: [operation], writeConcern}));
  const upserted = reply.upserted && reply.upserted[0];
  const result = {acknowledged: true, matchedCount: Number(reply.n) - (upserted ? 1 : 0), modifiedCount: Number(reply.nModified)};
  if (upserted) result.upsertedId = upserted._id;
  throwWriteErrors(reply, result, () => operation);
  return result;
};
function requireOperators(update) {
  if (!Array.isArray(update) && !Object.keys(update).every((key) => key.startsWith('$'))) {
    throw new Error('the update operation document must contain atomic operators');
  }
}
function requireReplacement(replacement) {
  if (Array.isArray(replacement) || Object.keys(replacement).some((key) => key.startsWith('$'))) {
    throw new Error('the replace operation document must not contain atomic operators');
  }
}
DBCollection.prototype.updateOne = function (filter, update, options) {
  requireOperators(update);
  return this._updated(filter, update, false, options);
};
DBCollection.prototype.updateMany = function (filter, update, options) {
  requireOperators(update);
  return this._updated(filter, update, true, options);
};
DBCollection.prototype.replaceOne = function (filter, replacement, options) {
  requireReplacement(replacement);
  return this._updated(filter, replacement, false, options);
};
DBCollection.prototype._deleted = function (q, limit, options) {
  const {writeConcern, ...rest} = options || {};
  const operation = Object.assign({q, limit}, rest);
  const reply = okOrThrow(this._command('delete', {deletes: [operation], writeConcern}));
  const result = {acknowledged: true, deletedCount: Number(reply.n)};
  throwWriteErrors(reply, result, () => operation);
  return result;
};
DBCollection.prototype.deleteOne = function (filter, options) { return this._deleted(filter, 1, options); };
DBCollection.prototype.deleteMany = function (filter, options) { return this._deleted(filter, 0, options); };
DBCollection.prototype.findAndModify = function (options) {
  const reply = okOrThrow(this._command('findAndModify', options));
  return throwWriteErrors(reply, reply.value).value;
};
DBCollection.prototype._findOneAnd = function (fields, options) {
  const {sort, projection, returnNewDocument, returnDocument, upsert, ...rest} = options || {};
  const wantsNew = returnNewDocument || returnDocument === 'after' || undefined;
  return this.findAndModify(Object.assign(fields, {sort, fields: projection, new: wantsNew, upsert}, rest));
};
DBCollection.prototype.findOneAndUpdate = function (query, update, options) {
  requireOperators(update);
  return this._findOneAnd({query, update}, options);
};
DBCollection.prototype.findOneAndReplace = function (query, update, options) {
  requireReplacement(update);
  return this._findOneAnd({query, update}, options);
};
DBCollection.prototype.findOneAndDelete = function (query, options) { return this._findOneAnd({query, remove: true}, options); };
// One operation after the other. A refused one ends an ordered bulk; a wait for others that failed
// does not, as the write was made.
DBCollection.prototype.bulkWrite = function (operations, options) {
  const {ordered, writeConcern} = options || {};
  const all = bulkCounts(), insertedIds = {};
  const matched = (outcome, at) => {
    all.nMatched += outcome.matchedCount;
    all.nModified += outcome.modifiedCount;
    if (outcome.upsertedId === undefined) return;
    all.nUpserted++;
    all.upserted.push({index: at, _id: outcome.upsertedId});
  };
  const removed = (outcome) => { all.nRemoved += outcome.deletedCount; };
  const perform = {
    insertOne: ({document}) => [() => this.insertOne(document, {writeConcern}), (outcome, at) => { insertedIds[at] = outcome.insertedId; all.nInserted++; }],
    updateOne: ({filter, update, ...rest}) => { requireOperators(update); return [() => this._updated(filter, update, false, {writeConcern, ...rest}), matched]; },
    updateMany: ({filter, update, ...rest}) => { requireOperators(update); return [() => this._updated(filter, update, true, {writeConcern, ...rest}), matched]; },
    replaceOne: ({filter, replacement, ...rest}) => { requireReplacement(replacement); return [() => this._updated(filter, replacement, false, {writeConcern, ...rest}), matched]; },
    deleteOne: ({filter, ...rest}) => [() => this._deleted(filter, 1, {writeConcern, ...rest}), removed],
    deleteMany: ({filter, ...rest}) => [() => this._deleted(filter, 0, {writeConcern, ...rest}), removed],
  };
  // What is no operation is found before the first one is done.
  const prepared = operations.map((operation) => {
    const [name] = Object.keys(operation);
    if (!Object.hasOwn(perform, name)) throw new Error('unknown bulk operation ' + name);
    return perform[name](operation[name]);
  });
  for (const [at, [run, count]] of prepared.entries()) {
    try {
      count(run(), at);
    } catch (error) {
      if (error instanceof WriteConcernError) {
        count(error.result, at);
        all.writeConcernErrors.push(new WriteConcernError(error));
      } else if (error instanceof WriteError) {
        all.writeErrors.push(new WriteError(Object.assign({}, error, {index: at}), error.op));
        if (ordered !== false) break;
      } else {
        throw error;
      }
    }
  }
  if (all.writeErrors.length || all.writeConcernErrors.length) throw new BulkWriteError(all);
  return {
    acknowledged: true, deletedCount: all.nRemoved, insertedCount: all.nInserted, matchedCount: all.nMatched, modifiedCount: all.nModified,
    upsertedCount: all.nUpserted, insertedIds, upsertedIds: Object.fromEntries(all.upserted.map(({index, _id}) => [index, _id])),
  };
};

// Indexes and the collection itself

DBCollection.prototype._indexSpec = function (key, options) {
  const given = typeof options === 'string' ? {name: options} : options === true ? {unique: true} : options || {};
  const parts = Object.entries(key).map(([field, kind]) => field + '_' + (typeof kind === 'string' ? kind : Number(kind)));
  return Object.assign({key, name: parts.join('_')}, given);
};
DBCollection.prototype.createIndexes = function (keys, options) {
  return this._command('createIndexes', {indexes: keys.map((key) => this._indexSpec(key, options))});
};
DBCollection.prototype.createIndex = function (key, options) { return this.createIndexes([key], options); };
DBCollection.prototype.ensureIndex = DBCollection.prototype.createIndex;
DBCollection.prototype.getIndexes = function () {
  const reply = this._command('listIndexes');
  if (reply.code === 26) return [];
  return new CommandCursor(this._db, okOrThrow(reply)).toArray();
};
DBCollection.prototype.getIndices = DBCollection.prototype.getIndexSpecs = DBCollection.prototype.getIndexes;
DBCollection.prototype.getIndexKeys = function () { return this.getIndexes().map((index) => index.key); };
DBCollection.prototype.dropIndex = function (index) {
  if (index === '*' || index === undefined) throw new Error('to drop all indexes use dropIndexes()');
  return this._command('dropIndexes', {index});
};
DBCollection.prototype.dropIndexes = function (names) {
  return this._command('dropIndexes', {index: names === undefined ? '*' : names});
};
DBCollection.prototype.reIndex = function () { return this._command('reIndex'); };
DBCollection.prototype.drop = function () {
  const reply = this._command('drop');
  if (!reply.ok && reply.code === 26) return false;
  throwWriteErrors(reply);
  return true;
};
DBCollection.prototype.exists = function () {
  return this._db.getCollectionInfos({name: this._shortName})[0] || null;
};
DBCollection.prototype.renameCollection = function (name, dropTarget) {
  return this._db.adminCommand({renameCollection: this._fullName, to: this._db.getName() + '.' + name, dropTarget: !!dropTarget});
};
DBCollection.prototype.validate = function (options) {
  return this._command('validate', options === true ? {full: true} : options);
};
DBCollection.prototype.stats = function (scale) {
  return this._command('collStats', typeof scale === 'object' ? scale : {scale});
};
for (const [method, field] of Object.entries({dataSize: 'size', storageSize: 'storageSize', totalIndexSize: 'totalIndexSize'})) {
  DBCollection.prototype[method] = function () { return Number(okOrThrow(this.stats())[field]); };
}
DBCollection.prototype.totalSize = function () { return this.storageSize() + this.totalIndexSize(); };
DBCollection.prototype.convertToCapped = function (bytes) {
  if (!bytes) throw new Error('have to specify # of bytes');
  return this._command('convertToCapped', {size: bytes});
};
DBCollection.prototype.isCapped = function () { return !!okOrThrow(this.stats()).capped; };
DBCollection.prototype.getShardDistribution = function () {
  const stats = okOrThrow(this.stats());
  if (!stats.shards) { print('Collection ' + this._fullName + ' is not sharded.'); return; }
  const chunks = chunkCounts(this._db.getSiblingDB('config'), this._fullName);
  for (const [shard, of] of Object.entries(stats.shards)) {
    print('\nShard ' + shard);
    print(' data : ' + bytesText(of.size) + ' docs : ' + of.count + ' chunks : ' + (chunks[shard] || 0));
  }
  print('\nTotals');
  print(' data : ' + bytesText(stats.size) + ' docs : ' + stats.count + ' chunks : ' + Object.values(chunks).reduce((a, b) => a + b, 0));
  for (const [shard, of] of Object.entries(stats.shards)) {
    print(' Shard ' + shard + ' contains ' + percent(of.size, stats.size) + ' data, ' + percent(of.count, stats.count) + ' docs in cluster');
  }
};
DBCollection.prototype.help = function () {
  print('DBCollection methods:');
  for (const name of Object.keys(DBCollection.prototype).filter((name) => !name.startsWith('_')).sort()) print('\tdb.' + this._shortName + '.' + name + '()');
};
