// Our shell against a whole set: what is asked for reaches the members. The members but the first
// have tags {n: "1"}, {n: "2"}.

function check(truth, what) { if (!truth) throw new Error('not so: ' + what); }
function refusal(work) {
  try { work(); } catch (error) { return error; }
  throw new Error('not refused: ' + work);
}

const mongo = db.getMongo();
const hello = db.hello();
const posts = db.posts;
posts.insertMany(Array.from({length: 50}, (_, at) => ({_id: at})), {writeConcern: {w: 3}});

// Who answers is told by the plan of a query.
function whoPlans(cursor) {
  const {host, port} = cursor.explain().serverInfo;
  return host + ':' + port;
}
const tagged = (n) => rs.conf().members.find((member) => member.tags.n === n).host;
check(whoPlans(posts.find()) === hello.primary, 'the primary reads unless told otherwise');
for (const n of ['1', '2']) {
  check(whoPlans(posts.find().readPref('secondary', [{n}])) === tagged(n), 'a cursor is sent by its tags');
  mongo.setReadPref('secondary', [{n}]);
  check(whoPlans(posts.find()) === tagged(n), 'the connection is set to tags');
  check(posts.find().batchSize(2).toArray().length === 50, 'a cursor stays on its member');
}
check(tojson(mongo.getReadPref()) === tojson({mode: 'secondary', tags: [{n: '2'}]}), 'the preference is known');
check(whoPlans(posts.find().readPref('primary')) === hello.primary, "a cursor's word counts more");
posts.aggregate([{$match: {_id: {$lt: 3}}}, {$out: 'few'}]);
check(db.few.find().readPref('primary').count() === 3, 'what writes goes to the primary');
mongo.setReadPref('primary');
check(/mode/.test(refusal(() => mongo.setReadPref('second')).message), 'an unknown mode');
check(/tagSet/.test(refusal(() => mongo.setReadPref('primary', [{n: '1'}])).message), 'the primary by tags');

// Concerns and limits
check(refusal(() => posts.find().readPref('secondary').readConcern('linearizable').toArray()).code === 10107, 'the level arrives');
mongo.setReadConcern('linearizable');
check(refusal(() => posts.find().readPref('secondary').toArray()).code === 10107, "the connection's level arrives");
mongo.setReadConcern();
check(posts.find().readPref('secondary').toArray().length === 50, 'no level any more');
check(refusal(() => posts.find({$where: 'while (true) {}'}).maxTimeMS(50).toArray()).codeName === 'MaxTimeMSExpired', 'a time limit');
for (const holder of [mongo, db, posts]) {
  holder.setWriteConcern({w: 9, wtimeout: 1000});
  const result = posts.insert({});
  check(result.nInserted === 1 && result.getWriteConcernError().code === 100, 'the write concern of ' + holder);
  holder.unsetWriteConcern();
  check(!posts.insert({}).hasWriteConcernError(), 'no write concern of ' + holder);
}
const unmet = refusal(() => posts.insertOne({_id: 'unmet'}, {writeConcern: {w: 9, wtimeout: 1000}}));
check(unmet instanceof WriteConcernError && unmet.errInfo.writeConcern.w === 9 && unmet.result.insertedId === 'unmet', 'said with its cause');
check(posts.find({_id: 'unmet'}).count() === 1, 'and made');
const bulk = refusal(() => posts.bulkWrite([{insertOne: {document: {_id: 'a'}}}, {deleteOne: {filter: {_id: 'a'}}}], {writeConcern: {w: 9}}));
check(bulk.nInserted === 1 && bulk.nRemoved === 1 && bulk.writeConcernErrors.length === 2, 'a bulk goes on');

// Sessions
const session = mongo.startSession({readPreference: {mode: 'secondary'}, retryWrites: true});
const mine = session.getDatabase(db.getName());
check(mine.getSession() === session && session.getOperationTime() === undefined && !session.hasEnded(), 'a fresh session');
for (let n = 0; n < 50; n++) {
  mine.seen.insertOne({_id: n});
  check(mine.seen.findOne({_id: n}) !== null, 'a session sees what it wrote, on a secondary');
}
check(session.getOperationTime() instanceof Timestamp && session.getClusterTime().clusterTime instanceof Timestamp, 'its times');
const other = mongo.startSession();
check(tojson(other.getSessionId()) !== tojson(session.getSessionId()), 'two sessions');
const others = other.getDatabase(db.getName());
const numbered = {insert: 'seen', documents: [{_id: 'once'}], txnNumber: NumberLong(1000)};
for (let n = 0; n < 2; n++) {
  const reply = others.runCommand(numbered);
  check(reply.ok === 1 && reply.n === 1 && !reply.writeErrors, 'a statement that is repeated in its session is done once');
}
const third = mongo.startSession();
third.advanceClusterTime(session.getClusterTime());
third.advanceOperationTime(session.getOperationTime());
check(tojson(third.getOperationTime()) === tojson(session.getOperationTime()), 'a time that was handed over');
third.endSession();
other.advanceOperationTime(Timestamp(4000000000, 1));
check(refusal(() => others.seen.findOne()).codeName === 'InvalidOptions', 'a read waits for its time');
const refused = refusal(() => other.startTransaction());
check(refused.codeName === 'NotImplemented' && /transactions/.test(refused.message), 'no transactions');
other.endSession();
check(other.hasEnded() && /ended/.test(refusal(() => others.seen.findOne()).message), 'an ended session');

const frozen = mongo.startSession({snapshot: true});
const then = frozen.getDatabase(db.getName()).seen;
const before = then.countDocuments({});
mine.seen.insertOne({_id: 'later'});
check(then.countDocuments({}) === before && then.distinct('_id').length === before, 'a snapshot stays');
check(db.seen.countDocuments({}) === before + 1, 'the present goes on');
for (const options of [{snapshot: true, causalConsistency: true}, {causal: true}, {retryWrites: 'yes'}, {readPreference: 'second'}]) {
  refusal(() => mongo.startSession(options));
}

// Writes of a session outlive a primary that steps down, also seen from a change stream.
const stream = db.steps.watch([{$match: {operationType: 'insert'}}], {maxAwaitTimeMS: 100});
const steps = session.getDatabase(db.getName()).steps;
for (let n = 0; n < 200; n++) {
  steps.insertOne({_id: n});
  if (n === 100) check(rs.stepDown(60).ok === 1, 'stepped down');
}
for (let n = 0; n < 200; n++) check(stream.next().documentKey._id === n, 'event ' + n);
stream.close();
check(db.hello().primary !== hello.primary, 'somebody else leads');
session.endSession();
print('set tour complete');
