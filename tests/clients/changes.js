// Change streams as both shells have them, against a replica set.
const check = function (ok, what) { if (!ok) throw new Error('failed: ' + what); };
const things = db.getSiblingDB('changes_js').things;
things.drop();
const stream = things.watch([{$match: {operationType: {$ne: 'create'}}}], {maxAwaitTimeMS: 100, fullDocument: 'updateLookup'});
check(stream.tryNext() === null && !stream.isClosed(), 'nothing yet');
things.insertOne({_id: 1, n: 1});
things.updateOne({_id: 1}, {$set: {n: 2}, $unset: {gone: 1}});
const inserted = stream.next();
check(inserted.operationType === 'insert' && inserted.fullDocument.n === 1 && inserted.ns.coll === 'things', 'insert');
const token = stream.getResumeToken();
const updated = stream.next();
check(updated.updateDescription.updatedFields.n === 2 && updated.fullDocument.n === 2, 'update');
stream.close();
check(stream.isClosed(), 'closed');

const again = things.watch([], {resumeAfter: inserted._id, maxAwaitTimeMS: 100});
check(again.next()._id._data === updated._id._data && token, 'resumed');
const database = db.getSiblingDB('changes_js').watch([], {maxAwaitTimeMS: 100});
const everything = db.getMongo().watch([], {maxAwaitTimeMS: 100});
things.drop();
check(database.next().operationType === 'drop' && everything.next().operationType === 'drop', 'drop');
check(again.next().operationType === 'drop' && again.next().operationType === 'invalidate', 'invalidate');
check(again.isClosed(), 'ended');
database.close();
everything.close();
print('changes complete');
