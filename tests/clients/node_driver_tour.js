// What applications do with the Node.js driver every day, against a replica set.

const assert = require('node:assert/strict');
const { MongoClient, Decimal128, Int32, Long, Timestamp, UUID } = require('mongodb');

const refused = async (doing) => {
  try {
    await doing;
  } catch (error) {
    return error;
  }
  throw new assert.AssertionError({ message: 'it was not refused' });
};
const ids = (documents) => documents.map((document) => document._id).join();

async function documents(client, db) {
  const posts = db.collection('posts');
  const kinds = {
    _id: 'kinds', int: new Int32(1), long: Long.fromNumber(2), decimal: new Decimal128('1.50'), uuid: new UUID(),
    pattern: /a/i, nothing: null, at: new Date(5), list: [[], [{}]],
  };
  await posts.insertOne(kinds);
  const raw = await posts.findOne({ _id: 'kinds' }, { promoteValues: false });
  assert.deepEqual([raw.int._bsontype, raw.long._bsontype, raw.decimal.toString()], ['Int32', 'Long', '1.50']);
  assert.ok(raw.uuid.toUUID().equals(kinds.uuid));
  await posts.deleteOne({ _id: 'kinds' });

  await posts.insertMany([
    { _id: 1, a: 1, s: 'x' }, { _id: 2, a: 2, s: 'Y' }, { _id: 3, a: [1, 2, 3], s: 'z' }, { _id: 4, a: { b: 1 } }, { _id: 5 },
  ]);
  const partly = await refused(posts.insertMany([{ _id: 8 }, { _id: 1 }, { _id: 2 }, { _id: 9 }], { ordered: false }));
  assert.deepEqual([partly.code, partly.insertedCount, partly.writeErrors.map((error) => error.index)], [11000, 2, [1, 2]]);
  const bulk = await posts.bulkWrite([
    { insertOne: { document: { _id: 'b1' } } },
    { updateOne: { filter: { _id: 'b1' }, update: [{ $set: { v: 1 } }] } },
    { updateOne: { filter: { _id: 'b2' }, update: { $set: { v: 1 } }, upsert: true } },
    { replaceOne: { filter: { _id: 'b3' }, replacement: { v: 2 }, upsert: true } },
    { deleteMany: { filter: { v: { $exists: true } } } },
  ]);
  assert.deepEqual([bulk.insertedCount, bulk.modifiedCount, bulk.upsertedIds, bulk.deletedCount], [1, 1, { 2: 'b2', 3: 'b3' }, 3]);

  const changes = { $set: { 'n.m': 1 }, $currentDate: { at: true }, $min: { a: 0 }, $mul: { q: 3 }, $rename: { s: 't' } };
  const changed = await posts.updateOne({ _id: 1 }, changes);
  assert.deepEqual([changed.matchedCount, changed.modifiedCount], [1, 1]);
  await posts.updateOne({ _id: 3, a: 2 }, { $set: { 'a.$': 20 }, $push: { log: { $each: [3, 1, 2], $sort: 1, $slice: 2 } } });
  assert.deepEqual(await posts.findOne({ _id: 3 }), { _id: 3, a: [1, 20, 3], s: 'z', log: [1, 2] });
  const told = { upsert: true, returnDocument: 'after', includeResultMetadata: true };
  const put = await posts.findOneAndUpdate({ _id: 'new' }, { $set: { f: 1 } }, told);
  assert.deepEqual([put.value, put.lastErrorObject], [{ _id: 'new', f: 1 }, { n: 1, updatedExisting: false, upserted: 'new' }]);
  assert.deepEqual(await posts.findOneAndDelete({ _id: 'new' }), { _id: 'new', f: 1 });
  for (const [update, code] of [
    [{ $inc: { t: 1 } }, 14], [{ $push: { t: 1 } }, 2], [{ $set: { _id: 2 } }, 66], [{ $set: { a: 1 }, $inc: { a: 2 } }, 40],
    [{ $wrong: { a: 2 } }, 9],
  ]) {
    assert.equal((await refused(posts.updateOne({ _id: 1 }, update))).code, code, JSON.stringify(update));
  }

  assert.equal(ids(await posts.find({ a: { $elemMatch: { $gt: 5 } } }).toArray()), '3');
  assert.deepEqual(await posts.findOne({ _id: 3 }, { projection: { a: { $slice: [1, 1] }, log: 0 } }), { _id: 3, a: [20], s: 'z' });
  const cursor = posts.find({}).sort({ _id: 1 }).batchSize(2);
  const first = await cursor.next();
  let rest = 0;
  for await (const post of cursor) rest += post ? 1 : 0;
  assert.deepEqual([first._id, rest, cursor.closed], [1, 6, true]);
  const left = posts.find({}).batchSize(1);
  await left.next();
  const { id } = left;
  await left.close();
  assert.equal((await refused(db.command({ getMore: id, collection: 'posts' }))).codeName, 'CursorNotFound');
  const command = db.runCursorCommand({ find: 'posts', filter: { _id: { $lt: 3 } }, projection: { _id: 1 }, batchSize: 1 });
  assert.equal(ids(await command.toArray()), '1,2');
}

async function collections(client, db) {
  const made = await db.createCollection('made', { validator: { n: { $gt: 1 } }, collation: { locale: 'fr' } });
  const again = await refused(db.createCollection('made', { capped: true, size: 100 }));
  assert.equal(again.codeName, 'NamespaceExists');
  const bad = await refused(made.insertMany([{ _id: 1, n: 5 }, { _id: 2, n: 0 }]));
  assert.deepEqual([bad.code, bad.insertedCount, bad.writeErrors[0].errInfo.failingDocumentId], [121, 1, 2]);
  await made.createIndexes([
    { key: { n: 1, s: -1 } }, { key: { h: 'hashed' } }, { key: { 'w.$**': 1 }, name: 'wild' },
    { key: { words: 'text' }, collation: { locale: 'simple' } },
  ]);
  assert.deepEqual(Object.keys(await made.indexInformation()), ['_id_', 'n_1_s_-1', 'h_hashed', 'wild', 'words_text']);
  assert.equal((await refused(made.createIndex({ n: 1, s: -1 }, { name: 'other' }))).codeName, 'IndexOptionsConflict');
  assert.equal((await refused(made.dropIndex('none'))).codeName, 'IndexNotFound');
  await made.dropIndexes();
  // What was said of an index is there to be read; those who compare indexes look at it.
  await made.createIndex({ f: 1 }, { background: true, sparse: false, unique: true });
  const { key, name, v, collation, ...flags } = (await made.indexes())[1];
  assert.deepEqual(flags, { background: true, sparse: false, unique: true });
  await made.insertOne({ _id: 'a', n: 2, f: 'text' });
  const twice = await refused(made.insertOne({ _id: 'b', n: 2, f: 'text' }));
  assert.match(twice.message, /dup key: \{ f: "0x[0-9a-f]+" \}$/);
  assert.equal((await refused(made.rename('posts'))).codeName, 'NamespaceExists');
  assert.equal((await made.rename('posts2')).collectionName, 'posts2');
  const there = await db.listCollections({}, { nameOnly: true }).toArray();
  assert.deepEqual(there.map((collection) => collection.name).sort(), ['posts', 'posts2']);
  const listed = await client.db().admin().listDatabases({ nameOnly: true, filter: { name: 'driver_tour' } });
  assert.deepEqual(listed.databases, [{ name: 'driver_tour' }]);
  const fields = (count) => Object.fromEntries(Array.from({ length: count }, (_, n) => [`f${n}`, 1]));
  assert.equal((await db.collection('posts').find().sort(fields(32)).toArray()).length, 7);
  assert.equal((await refused(db.collection('posts').find().sort(fields(33)).toArray())).code, 13103);
  const explained = await db.collection('posts').find({ _id: 1 }).explain('executionStats');
  assert.equal(explained.executionStats.nReturned, 1);
}

async function pipelines(client, db) {
  const posts = db.collection('posts');
  await posts.aggregate([{ $match: { _id: { $lt: 4 } } }, { $project: { a: 1 } }, { $out: 'out' }]).toArray();
  await posts.aggregate([{ $match: { _id: 5 } }, { $merge: { into: 'out', whenNotMatched: 'insert' } }]).toArray();
  assert.equal(ids(await db.collection('out').find().sort({ _id: 1 }).toArray()), '1,2,3,5');
  const ranks = await posts.aggregate([
    { $match: { _id: { $lt: 4 } } },
    {
      $setWindowFields: {
        sortBy: { _id: 1 },
        output: { sum: { $sum: '$_id', window: { documents: ['unbounded', 'current'] } } },
      },
    },
    { $lookup: { from: 'out', let: { id: '$_id' }, pipeline: [{ $match: { $expr: { $eq: ['$_id', '$$id'] } } }], as: 'same' } },
    { $project: { sum: 1, same: { $size: '$same' } } },
  ]).toArray();
  assert.deepEqual(ranks, [{ _id: 1, sum: 1, same: 1 }, { _id: 2, sum: 3, same: 1 }, { _id: 3, sum: 6, same: 1 }]);
  assert.equal((await refused(posts.aggregate([{ $wrong: 1 }]).toArray())).code, 40324);
}

async function sessions(client, db) {
  const posts = db.collection('posts');
  await client.withSession({ causalConsistency: true }, async (session) => {
    await posts.insertOne({ _id: 'causal' }, { session });
    assert.ok(await posts.findOne({ _id: 'causal' }, { session, readPreference: 'secondaryPreferred' }));
  });
  await client.withSession({ snapshot: true }, async (session) => {
    const before = await posts.countDocuments({}, { session });
    await posts.insertOne({ _id: 'later' });
    assert.equal(await posts.countDocuments({}, { session }), before);
  });
  const far = await refused(posts.insertOne({ _id: 'far' }, { writeConcern: { w: 5, wtimeout: 100 } }));
  assert.deepEqual([far.name, far.code], ['MongoWriteConcernError', 100]);
  // What a client gives up on ends on the server.
  const slow = { $where: 'sleep(100) || true' };
  assert.equal((await refused(posts.find(slow).maxTimeMS(50).toArray())).codeName, 'MaxTimeMSExpired');
  const address = `mongodb://${client.options.hosts[0]}/?directConnection=true`;
  const strict = new MongoClient(address, { serverApi: { version: '1', strict: true } });
  assert.equal((await refused(strict.db('driver_tour').collection('posts').distinct('a'))).codeName, 'APIStrictError');
  await strict.close();
}

// They are refused as such, and leave nothing behind.
async function transactions(client, db) {
  const posts = db.collection('posts');
  for (const first of [(session) => posts.insertOne({ _id: 'never' }, { session }), (session) => posts.findOne({}, { session })]) {
    const error = await refused(client.withSession((session) => session.withTransaction(() => first(session))));
    assert.match(error.message, /[Tt]ransaction/);
  }
  assert.equal(await posts.findOne({ _id: 'never' }), null);
}

async function changes(client, db) {
  const session = client.startSession();
  await db.command({ ping: 1 }, { session });
  const from = { startAtOperationTime: session.operationTime, maxAwaitTimeMS: 100 };
  await session.endSession();
  const kept = await db.createCollection('kept', { changeStreamPreAndPostImages: { enabled: true } });
  await kept.insertOne({ _id: 1, list: [1, 2, 3], inner: { p: 1 } });
  await kept.updateOne({ _id: 1 }, { $set: { 'inner.q': 2 }, $unset: { 'inner.p': 1 }, $pop: { list: 1 } });
  await kept.deleteOne({ _id: 1 });
  const stream = kept.watch([], { ...from, fullDocument: 'required', fullDocumentBeforeChange: 'required' });
  const [inserted, updated, deleted] = [await stream.next(), await stream.next(), await stream.next()];
  await stream.close();
  assert.ok(inserted.clusterTime instanceof Timestamp);
  assert.deepEqual(updated.updateDescription.updatedFields, { 'inner.q': 2, list: [1, 2] });
  assert.deepEqual(updated.updateDescription.removedFields, ['inner.p']);
  assert.deepEqual(updated.fullDocumentBeforeChange.list, [1, 2, 3]);
  assert.deepEqual(deleted.fullDocumentBeforeChange, { _id: 1, list: [1, 2], inner: { q: 2 } });
  const resumed = kept.watch([], { resumeAfter: updated._id });
  assert.deepEqual((await resumed.next())._id, deleted._id);
  await resumed.close();
  const whole = db.watch([{ $match: { 'ns.coll': { $in: ['kept', 'moved'] } } }], { ...from, showExpandedEvents: true });
  await kept.createIndex({ a: 1 });
  await kept.rename('moved');
  await db.collection('moved').drop();
  const met = [];
  while (met.at(-1) !== 'drop') met.push((await whole.next()).operationType);
  await whole.close();
  assert.deepEqual(met, ['create', 'insert', 'update', 'delete', 'createIndexes', 'rename', 'drop']);
}

async function tour(uri) {
  const client = await MongoClient.connect(uri, { compressors: ['zlib'], serverSelectionTimeoutMS: 20000 });
  const db = client.db('driver_tour');
  await db.dropDatabase();
  for (const part of [documents, collections, pipelines, sessions, changes, transactions]) await part(client, db);
  await db.dropDatabase();
  await client.close();
  console.log('driver complete');
}

tour(process.argv[2]).catch((error) => {
  console.error(error);
  process.exit(1);
});
