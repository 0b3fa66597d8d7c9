// A tour that works the same in mongosh and in our shell.

db = db.getSiblingDB('tour_shell');
db.dropDatabase();

function check(truth, what) { if (!truth) throw new Error('not so: ' + what); }

check(db.runCommand({ping: 1}).ok === 1, 'ping');
db.posts.insertOne({_id: 1, n: 1, tags: ['a', 'b'], when: new Date(0)});
db.posts.insertMany([{_id: 2, n: 2}, {_id: 3, n: 3}]);
check(db.posts.countDocuments({}) === 3, 'three posts');
check(db.posts.findOne({_id: 1}).tags[1] === 'b', 'an array comes back');
check(db.posts.findOne({_id: 1}).when.getTime() === 0, 'a date comes back');
check(db.posts.find({n: {$gt: 1}}).sort({n: -1}).toArray().map((post) => post._id).join() === '3,2', 'sorted');
check(db.posts.updateOne({_id: 2}, {$inc: {n: 10}}).modifiedCount === 1, 'updated');
db.posts.updateOne({_id: 9}, {$set: {n: 9}}, {upsert: true});
check(db.posts.findOne({_id: 9}).n === 9, 'upserted');
check(db.posts.deleteMany({_id: 9}).deletedCount === 1, 'deleted');
db.posts.createIndex({n: 1});
check(db.posts.getIndexes().length === 2, 'two indexes');
check(db.posts.distinct('n').length === 3, 'distinct');
check(db.posts.aggregate([{$group: {_id: null, sum: {$sum: '$n'}}}]).toArray()[0].sum === 16, 'a sum');
let refused;
try { db.posts.insertOne({_id: 1}); } catch (error) { refused = error; }
check(refused && /E11000/.test(refused.message), 'a duplicate is refused');
const counted = db.runCommand({
  mapReduce: 'posts',
  map: function () { emit(this.n % 2, 1); },
  reduce: function (key, values) { return Array.sum(values); },
  out: {inline: 1},
});
check(counted.ok === 1 && counted.results.length === 2, 'map-reduce');
check(db.getCollectionNames().indexOf('posts') >= 0, 'listed');
check(db.posts.stats().count == 3, 'stats');
check(db.posts.find().sort({$natural: -1}).limit(1).toArray()[0]._id === 3, 'backwards');
db.createCollection('log', {capped: true, size: 1000, max: 2});
db.log.insertMany([{_id: 1}, {_id: 2}, {_id: 3}]);
check(db.log.isCapped() && db.log.countDocuments({}) === 2, 'capped');
check(db.log.find().tailable().next()._id === 2, 'tailed');
check(db.posts.convertToCapped(4096).ok === 1 && db.posts.isCapped(), 'converted');
check(db.posts.drop() === true, 'dropped');
db.dropDatabase();
print('tour complete');
