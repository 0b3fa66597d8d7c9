// What the 2.x shell printed of a cluster.

db = db.getSiblingDB('test');
function check(reply) { if (!reply.ok) throw new Error(tojson(reply)); }
check(db.adminCommand({enablesharding: 'test'}));
check(db.adminCommand({shardcollection: 'test.posts', key: {id: 1}}));
db.posts.insert([{id: 'a'}, {id: 'm'}, {id: 'z'}]);
check(sh.splitAt('test.posts', {id: 'm'}));
sh.status();
db.printShardingStatus();
db.printCollectionStats();
print('tour complete');
