// What applications do with mongoose every day, against a replica set.

const assert = require('node:assert/strict');
const mongoose = require('mongoose');

const { Schema } = mongoose;
const ObjectId = Schema.Types.ObjectId;

const refused = async (doing) => {
  try {
    await doing;
  } catch (error) {
    return error;
  }
  throw new assert.AssertionError({ message: 'it was not refused' });
};
const names = (documents) => documents.map((document) => document.name).join();

const saved = [];
const writerSchema = new Schema({
  name: { type: String, required: true, index: true },
  email: { type: String, unique: true, sparse: true, lowercase: true },
  age: Number,
  tags: [String],
  address: { city: String },
  social: { type: Map, of: String },
  balance: Schema.Types.Decimal128,
  big: BigInt,
  picture: Buffer,
  anything: Schema.Types.Mixed,
  uuid: Schema.Types.UUID,
}, { timestamps: true });
writerSchema.index({ 'address.city': 1, age: -1 });
writerSchema.virtual('works', { ref: 'Book', localField: '_id', foreignField: 'writer' });
writerSchema.virtual('workCount', { ref: 'Book', localField: '_id', foreignField: 'writer', count: true });
writerSchema.pre('save', async function () { saved.push(`before ${this.name}`); });
writerSchema.post('save', (writer) => { saved.push(`after ${writer.name}`); });
const Writer = mongoose.model('Writer', writerSchema);

const bookSchema = new Schema({
  title: String,
  body: String,
  pages: Number,
  writer: { type: ObjectId, ref: 'Writer' },
  reviews: [{ by: { type: ObjectId, ref: 'Writer' }, stars: Number }],
}, { optimisticConcurrency: true });
bookSchema.index({ title: 'text', body: 'text' }, { name: 'words', weights: { title: 10 } });
const Book = mongoose.model('Book', bookSchema);

async function documents() {
  await Promise.all([Writer.init(), Book.init()]);
  assert.deepEqual(await Writer.syncIndexes(), []);
  const listed = await Writer.listIndexes();
  assert.deepEqual(listed.map((index) => index.name), ['_id_', 'name_1', 'email_1', 'address.city_1_age_-1']);

  const given = {
    name: 'Ann', email: 'ANN@x.org', age: 30, tags: ['a', 'b'], address: { city: 'Graz' }, social: { web: '@ann' },
    balance: '12.50', big: 2n ** 60n, picture: Buffer.from('png'), anything: { a: [1, { b: 2 }] },
    uuid: '09190f70-3d30-11e5-8814-0f4df9a59c41',
  };
  const ann = await Writer.create(given);
  const [bob] = await Writer.insertMany([{ name: 'Bob', email: 'bob@x.org', age: 12 }]);
  assert.deepEqual(saved, ['before Ann', 'after Ann']);
  const plain = await Writer.findById(ann._id).lean();
  assert.equal(plain.email, 'ann@x.org');
  assert.equal(String(plain.balance), '12.50');
  assert.equal(BigInt(plain.big), 2n ** 60n);
  assert.deepEqual(plain.anything, given.anything);
  assert.ok(plain.createdAt instanceof Date);
  assert.equal((await Writer.findById(ann._id)).social.get('web'), '@ann');

  // What a unique index refuses, in every way to write.
  for (const doing of [
    () => Writer.create({ name: 'Cat', email: 'ann@x.org' }),
    () => Writer.updateOne({ name: 'Bob' }, { email: 'ann@x.org' }),
    () => Writer.findOneAndUpdate({ name: 'Bob' }, { email: 'ann@x.org' }),
    () => Writer.insertMany([{ name: 'Cat', email: 'ann@x.org' }]),
    () => Writer.bulkWrite([{ insertOne: { document: { name: 'Cat', email: 'ann@x.org' } } }]),
  ]) {
    const error = await refused(doing());
    assert.equal(error.code, 11000, error);
    const message = 'E11000 duplicate key error collection: mongoose_tour.writers index: email_1 dup key: { email: "ann@x.org" }';
    assert.ok(error.message.endsWith(message), error.message);
    if (error.name === 'MongoBulkWriteError') continue;
    assert.deepEqual([error.keyPattern, error.keyValue], [{ email: 1 }, { email: 'ann@x.org' }]);
  }
  const three = [{ name: 'Dan', email: 'dan@x.org' }, { name: 'E', email: 'ann@x.org' }, { name: 'Fay', email: 'fay@x.org' }];
  const some = await refused(Writer.insertMany(three, { ordered: false }));
  assert.equal(names(some.insertedDocs), 'Dan,Fay');
  assert.equal((await refused(Writer.create({ age: 3 }))).name, 'ValidationError');

  // Changes to a loaded document become updates of what has changed.
  ann.age += 1;
  ann.tags.push('c');
  ann.social.set('phone', '1');
  ann.anything.a[1].b = 3;
  ann.markModified('anything');
  await ann.save();
  ann.tags.pull('a');
  ann.tags.addToSet('b', 'z');
  await ann.save();
  const changed = await Writer.findOne({ name: 'Ann' }).lean();
  assert.deepEqual([changed.age, changed.tags, changed.social.phone, changed.anything.a[1].b], [31, ['b', 'c', 'z'], '1', 3]);
  await Writer.updateOne({ name: 'Ann' }, { $set: { 'tags.$[tag]': 'y' } }, { arrayFilters: [{ tag: 'z' }] });
  const grown = await Writer.findOneAndUpdate({ name: 'Bob' }, { $inc: { age: 1 } }, { new: true, includeResultMetadata: true });
  assert.deepEqual([grown.value.age, grown.lastErrorObject.updatedExisting], [13, true]);
  const told = { upsert: true, new: true, includeResultMetadata: true };
  const put = await Writer.findOneAndUpdate({ name: 'Zed' }, { $setOnInsert: { age: 1 } }, told);
  assert.equal(String(put.lastErrorObject.upserted), String(put.value._id));
  await put.value.deleteOne();
  assert.equal(await Writer.exists({ name: 'Zed' }), null);
  const all = await Writer.updateMany({}, [{ $set: { tags: { $concatArrays: [{ $ifNull: ['$tags', []] }, ['all']] } } }]);
  assert.deepEqual([all.matchedCount, all.modifiedCount], [4, 4]);
  assert.deepEqual(await Writer.distinct('tags'), ['all', 'b', 'c', 'y']);
  const bulk = await Writer.bulkWrite([
    { insertOne: { document: { name: 'Gus' } } },
    { updateMany: { filter: { age: { $lt: 20 } }, update: { $inc: { age: 1 } } } },
    { replaceOne: { filter: { name: 'Hal' }, replacement: { name: 'Hal' }, upsert: true } },
    { deleteOne: { filter: { name: 'Gus' } } },
  ]);
  assert.deepEqual([bulk.insertedCount, bulk.modifiedCount, bulk.upsertedCount, bulk.deletedCount], [1, 1, 1, 1]);
  const several = await Writer.find({ name: /^[BDF]/ });
  for (const writer of several) writer.age = 50;
  assert.equal((await Writer.bulkSave(several)).modifiedCount, 3);

  // Queries, as documents and one after the other.
  assert.equal(names(await Writer.find({ name: 'ANN' }).collation({ locale: 'en', strength: 2 })), 'Ann');
  const older = Writer.find({ $or: [{ name: /^a/i }, { age: { $gte: 50 } }] }).sort('-name').skip(1).limit(2);
  assert.equal(names(await older.lean()), 'Dan,Bob');
  const met = [];
  for await (const writer of Writer.find().sort('name').cursor({ batchSize: 2 })) met.push(writer);
  assert.equal(names(met), 'Ann,Bob,Dan,Fay,Hal');
  assert.match((await refused(Writer.find({}).hint({ no: 1 }))).message, /hint provided does not correspond to an existing index/);

  // References.
  const reviews = [{ by: bob._id, stars: 4 }];
  const tea = await Book.create({ title: 'Tea', body: 'no coffee, but trees', pages: 50, writer: ann._id, reviews });
  await Book.create({ title: 'Coffee', body: 'from trees', pages: 100, writer: ann._id });
  const populated = await Book.findOne({ title: 'Tea' }).populate('writer', 'name -_id').populate('reviews.by', 'name');
  assert.deepEqual([populated.writer.name, populated.reviews[0].by.name], ['Ann', 'Bob']);
  const works = { path: 'works', options: { sort: { title: 1 } } };
  const whose = await Writer.findOne({ name: 'Ann' }).populate(works).populate('workCount');
  assert.deepEqual([whose.works.map((book) => book.title), whose.workCount], [['Coffee', 'Tea'], 2]);
  const stale = await Book.findById(tea._id);
  tea.pages = 51;
  await tea.save();
  stale.pages = 52;
  assert.equal((await refused(stale.save())).name, 'VersionError');

  // Text, the best match first, and pipelines over both collections.
  const score = { $meta: 'textScore' };
  const found = await Book.find({ $text: { $search: 'coffee' } }, { title: 1, score }).sort({ score }).lean();
  assert.deepEqual(found.map((book) => [book.title, book.score]), [['Coffee', 10], ['Tea', 0.75]]);
  const [sums] = await Book.aggregate([
    { $lookup: { from: 'writers', localField: 'writer', foreignField: '_id', as: 'writer' } },
    { $unwind: '$writer' },
    { $group: { _id: '$writer.name', pages: { $sum: '$pages' }, titles: { $addToSet: '$title' } } },
  ]);
  assert.deepEqual([sums._id, sums.pages, sums.titles.sort()], ['Ann', 151, ['Coffee', 'Tea']]);
}

async function kinds() {
  const Event = mongoose.model('Event', new Schema({ n: Number }, { discriminatorKey: 'kind' }));
  const Click = Event.discriminator('Click', new Schema({ url: { type: String, unique: true, sparse: true } }));
  const Purchase = Event.discriminator('Purchase', new Schema({ price: Number }), 'bought');
  await Promise.all([Event.init(), Click.init(), Purchase.init()]);
  await Click.create({ n: 1, url: '/a' });
  await Event.create({ n: 2, kind: 'bought', price: 3 }, { n: 3, kind: 'bought', price: 4 });
  assert.deepEqual((await Event.find().sort('n')).map((event) => event.constructor.modelName), ['Click', 'Purchase', 'Purchase']);
  assert.deepEqual(await Purchase.aggregate([{ $group: { _id: '$kind', sum: { $sum: '$price' } } }]), [{ _id: 'bought', sum: 7 }]);
  assert.deepEqual((await refused(Click.create({ url: '/a' }))).keyValue, { url: '/a' });
}

async function places() {
  const at = { type: { type: String }, coordinates: [Number] };
  const schema = new Schema({ name: String, at, flat: { type: [Number], index: '2d' } });
  schema.index({ at: '2dsphere' });
  const Place = mongoose.model('Place', schema);
  await Place.init();
  await Place.insertMany([['Graz', 15.44, 47.07], ['Linz', 14.29, 48.31], ['Wien', 16.37, 48.21]]
    .map(([name, ...flat]) => ({ name, at: { type: 'Point', coordinates: flat }, flat })));
  const here = { type: 'Point', coordinates: [15.5, 47] };
  assert.equal(names(await Place.find().where('at').near({ center: here, maxDistance: 160000, spherical: true })), 'Graz,Wien');
  assert.equal(names(await Place.find().where('flat').within({ center: [15, 48], radius: 1.1 }).sort('name')), 'Graz,Linz');
  assert.equal(names(await Place.find({ at: { $geoWithin: { $centerSphere: [[15.5, 47], 0.01] } } })), 'Graz');
  const [first] = await Place.aggregate().near({ near: here, distanceField: 'distance', spherical: true, key: 'at' }).limit(1);
  assert.equal(Math.round(first.distance), 9025);
  const wrong = await refused(Place.collection.insertOne({ at: { type: 'Point', coordinates: [200, 100] } }));
  assert.match(wrong.message, /longitude\/latitude is out of bounds/);
}

// Options of collections and indexes that a schema names.
async function options() {
  const fields = { token: { type: String, unique: true }, at: { type: Date, expires: '1h' }, user: String, n: Number };
  const schema = new Schema(fields, { collation: { locale: 'en', strength: 1 } });
  schema.index({ user: 1 }, { unique: true, partialFilterExpression: { n: { $gt: 5 } } });
  const Login = mongoose.model('Login', schema);
  await Login.init();
  const indexes = await Login.collection.indexInformation({ full: true });
  assert.equal(indexes.find((index) => index.name === 'at_1').expireAfterSeconds, 3600);
  assert.equal(indexes.find((index) => index.name === 'user_1').collation.locale, 'en');
  await Login.create({ token: 'abc', user: 'u', n: 1 }, { token: 'def', user: 'u', n: 6 });
  assert.equal((await Login.findOne({ token: 'ABC' })).n, 1);
  assert.equal((await refused(Login.create({ token: 'Abc' }))).code, 11000);
  assert.deepEqual((await refused(Login.create({ token: 'ghi', user: 'U', n: 7 }))).keyPattern, { user: 1 });

  const Line = mongoose.model('Line', new Schema({ n: Number }, { capped: { size: 4096, max: 3 } }));
  await Line.init();
  for (let n = 0; n < 5; n += 1) await Line.create({ n });
  const tailed = [];
  for await (const line of Line.find().tailable({ awaitData: true }).cursor()) {
    tailed.push(line.n);
    if (tailed.length === 3) break;
  }
  assert.deepEqual(tailed, [2, 3, 4]);

  await mongoose.connection.createCollection('grown', { viewOn: 'writers', pipeline: [{ $match: { age: { $gte: 31 } } }] });
  const view = { collection: 'grown', autoCreate: false, autoIndex: false };
  const Grown = mongoose.model('Grown', new Schema({ name: String }, view));
  assert.equal(names(await Grown.find().sort('name').lean()), 'Ann,Bob,Dan,Fay');
  assert.equal((await refused(Grown.create({ name: 'Ida' }))).code, 166);
}

async function sessions() {
  await mongoose.connection.withSession(async (session) => {
    await Writer.create([{ name: 'Sue' }], { session });
    assert.equal((await Writer.findOne({ name: 'Sue' }).session(session)).name, 'Sue');
  });
}

// They are refused as such, and leave nothing behind.
async function transactions() {
  const error = await refused(mongoose.connection.transaction((session) => Writer.create([{ name: 'Tom' }], { session })));
  assert.match(error.message, /[Tt]ransaction/);
  assert.equal(await Writer.countDocuments({ name: 'Tom' }), 0);
}

async function changes() {
  const session = await mongoose.startSession();
  await Writer.findOne().session(session);
  // From a time on: the stream's own beginning nothing tells of.
  const from = { startAtOperationTime: session.operationTime, fullDocument: 'updateLookup' };
  await session.endSession();
  const uma = new Writer({ name: 'Uma' });
  const stream = Writer.watch([{ $match: { 'documentKey._id': uma._id } }], from);
  const events = [];
  const four = new Promise((resolve, reject) => {
    stream.on('error', reject);
    stream.on('change', (event) => { if (events.push(event) === 4) resolve(); });
  });
  await uma.save();
  uma.tags.push('new');
  await uma.save();
  await Writer.replaceOne({ _id: uma._id }, { name: 'Ute' });
  await Writer.deleteOne({ _id: uma._id });
  await four;
  await stream.close();
  assert.deepEqual(events.map((event) => event.operationType), ['insert', 'update', 'replace', 'delete']);
  assert.deepEqual(events[0].fullDocument.name, 'Uma');
  assert.deepEqual(events[1].updateDescription.updatedFields.tags, ['new']);
  assert.ok(events[3].documentKey._id.equals(uma._id));
}

async function files() {
  const { db } = mongoose.connection;
  const bucket = new mongoose.mongo.GridFSBucket(db, { bucketName: 'photos', chunkSizeBytes: 1000 });
  const bytes = Buffer.alloc(4500, 'abc');
  const upload = bucket.openUploadStream('a.txt', { metadata: { owner: 'Ann' } });
  await new Promise((resolve, reject) => { upload.on('finish', resolve).on('error', reject).end(bytes); });
  const read = async (stream) => Buffer.concat(await stream.toArray());
  assert.ok((await read(bucket.openDownloadStream(upload.id))).equals(bytes));
  assert.equal(String(await read(bucket.openDownloadStreamByName('a.txt', { start: 1500, end: 1506 }))), 'abcabc');
  assert.deepEqual((await bucket.find({ 'metadata.owner': 'Ann' }).toArray()).map((file) => file.length), [4500]);
  await bucket.rename(upload.id, 'b.txt');
  await bucket.delete(upload.id);
  assert.equal(await db.collection('photos.chunks').countDocuments(), 0);
  assert.match((await refused(read(bucket.openDownloadStream(upload.id)))).message, /FileNotFound/);
}

async function tour(uri) {
  await mongoose.connect(uri, { dbName: 'mongoose_tour', serverSelectionTimeoutMS: 20000 });
  for (const part of [documents, kinds, places, options, sessions, changes, files, transactions]) await part();
  await mongoose.connection.dropDatabase();
  await mongoose.disconnect();
  console.log('mongoose complete');
}

tour(process.argv[2]).catch((error) => {
  console.error(error);
  process.exit(1);
});
