// sh.*: sharding, and the status pages of the 2.x shell.

const sh = {
  _admin(command) {
    if (!db.getMongo().isMongos()) throw new Error('not connected to a mongos');
    return db._adminCommand(command);
  },
  status(verbose, configDB) { printShardingStatus(configDB || db.getSiblingDB('config'), verbose); },
  _needs(value, what) {
    if (value === undefined || value === null || value === '') throw new Error('Expected ' + what + ', but got ' + tojson(value));
  },
  _namespace(ns) {
    const name = ns instanceof DBCollection ? ns.getFullName() : ns;
    if (typeof name !== 'string' || !/^[^.]+\../.test(name)) throw new Error('Expected a namespace, as "database.collection", but got ' + tojson(ns));
    return name;
  },
  addShard(url) { sh._needs(url, 'a shard, as "set/host:port,host:port"'); return sh._admin({addShard: url}); },
  removeShard(name) { sh._needs(name, "a shard's name"); return sh._admin({removeShard: name}); },
  enableSharding(name, primaryShard) {
    sh._needs(name, "a database's name");
    return sh._admin(Object.assign({enableSharding: name}, primaryShard && {primaryShard}));
  },
  shardCollection(ns, key, unique, options) {
    const shardCollection = sh._namespace(ns);
    sh._needs(key, 'a shard key, as {user: 1}');
    return sh._admin(Object.assign({shardCollection, key}, unique && {unique: true}, options));
  },
  splitFind(ns, find) {
    const split = sh._namespace(ns);
    sh._needs(find, 'a query on the shard key');
    return sh._admin({split, find});
  },
  splitAt(ns, middle) {
    const split = sh._namespace(ns);
    sh._needs(middle, 'a value of the shard key, as {user: 5}');
    return sh._admin({split, middle});
  },
  moveChunk(ns, find, to) {
    const moveChunk = sh._namespace(ns);
    sh._needs(find, 'a query on the shard key');
    sh._needs(to, "a shard's name");
    return sh._admin({moveChunk, find, to});
  },
  startBalancer() { return sh._admin({balancerStart: 1}); },
  stopBalancer() { return sh._admin({balancerStop: 1}); },
  setBalancerState(on) { return on ? sh.startBalancer() : sh.stopBalancer(); },
  getBalancerState() { return okOrThrow(sh._admin({balancerStatus: 1})).mode !== 'off'; },
  isBalancerRunning() { return okOrThrow(sh._admin({balancerStatus: 1})).inBalancerRound; },
  enableBalancing(ns) { return sh._setNoBalance(ns, false); },
  disableBalancing(ns) { return sh._setNoBalance(ns, true); },
  _setNoBalance(ns, noBalance) {
    return db.getSiblingDB('config').collections.update({_id: sh._namespace(ns)}, {$set: {noBalance}});
  },
  addShardToZone(shard, zone) { return sh._admin({addShardToZone: shard, zone}); },
  removeShardFromZone(shard, zone) { return sh._admin({removeShardFromZone: shard, zone}); },
  updateZoneKeyRange(ns, min, max, zone) { return sh._admin({updateZoneKeyRange: sh._namespace(ns), min, max, zone}); },
  removeRangeFromZone(ns, min, max) { return sh.updateZoneKeyRange(ns, min, max, null); },
  help() {
    print('\tsh.addShard(host)                        adds a shard: set/host:port,host:port or host:port');
    print('\tsh.enableSharding(database)              lets the database hold sharded collections');
    print('\tsh.shardCollection(ns, key, unique)      shards a collection');
    print('\tsh.splitFind(ns, query)                  splits the chunk that the query is in at its median');
    print('\tsh.splitAt(ns, middle)                   splits the chunk that middle is in at middle');
    print('\tsh.moveChunk(ns, query, shard)           moves the chunk that the query is in');
    print('\tsh.addShardToZone(shard, zone), sh.removeShardFromZone(shard, zone)');
    print('\tsh.updateZoneKeyRange(ns, min, max, zone)  keeps a range of the shard key on the shards of a zone');
    print('\tsh.disableBalancing(ns), sh.enableBalancing(ns)');
    print('\tsh.setBalancerState(on)                  turns the balancer on or off');
    print('\tsh.getBalancerState(), sh.isBalancerRunning()');
    print('\tsh.status([verbose])                     prints the state of the cluster');
  },
  toString() { return 'sharding helpers; see sh.help()'; },
};
// The names of zones in the 2.x shell.
Object.assign(sh, {
  addShardTag: sh.addShardToZone, removeShardTag: sh.removeShardFromZone, addTagRange: sh.updateZoneKeyRange,
  removeTagRange: sh.removeRangeFromZone,
});
Object.defineProperty(sh, 'shellPrint', {value: () => sh.help()});

// Chunks name their collection by its UUID; those of older clusters by its namespace.
function chunkFilter(config, ns) {
  const collection = config.collections.findOne({_id: ns});
  return collection && collection.uuid !== undefined ? {uuid: collection.uuid} : {ns};
}

function chunkCounts(config, ns) {
  const counts = {};
  config.chunks.aggregate([{$match: chunkFilter(config, ns)}, {$group: {_id: '$shard', n: {$sum: 1}}}, {$sort: {_id: 1}}])
    .forEach((row) => { counts[row._id] = Number(row.n); });
  return counts;
}

// Most chunks that are listed one by one unless the listing is asked to be verbose.
const LISTED_CHUNKS_MAX = 20;

function printShardingStatus(config, verbose) {
  const version = config.getCollection('version').findOne();
  if (version === null) {
    print('printShardingStatus: this db does not have sharding enabled. be sure you are connecting to a mongos from the shell and not to a mongod.');
    return;
  }
  const line = (document) => tojson(document, '', true);
  print('--- Sharding Status --- ');
  print('  sharding version: ' + line(version));
  print('  shards:');
  config.shards.find().sort({_id: 1}).forEach((shard) => print('\t' + line(shard)));
  printBalancer(config);
  print('  databases:');
  const databases = config.databases.find().sort({_id: 1}).toArray();
  if (!databases.some((database) => database._id === 'admin')) {
    databases.unshift({_id: 'admin', partitioned: false, primary: 'config'});
  }
  for (const database of databases) {
    print('\t' + line(database));
    const prefix = database._id.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
    config.collections.find({_id: new RegExp('^' + prefix + '\\.')}).sort({_id: 1}).forEach((collection) => {
      if (collection.dropped) return;
      printChunks(config, collection, verbose);
    });
  }
}

const BALANCER_ROUNDS = 5;

// Whether the balancer may and does move chunks, and what came of it lately.
function printBalancer(config) {
  const yesNo = (truth) => (truth ? 'yes' : 'no');
  const settings = config.settings.findOne({_id: 'balancer'}) || {};
  print('  balancer:');
  print('\tCurrently enabled:  ' + yesNo(!settings.stopped && settings.mode !== 'off'));
  if (config.getMongo().isMongos()) {
    print('\tCurrently running:  ' + yesNo(okOrThrow(config.adminCommand({balancerStatus: 1})).inBalancerRound));
  }
  if (settings.activeWindow) {
    print('\t\tBalancer active window is set between ' + settings.activeWindow.start + ' and ' + settings.activeWindow.stop +
      ' server local time');
  }
  const rounds = config.actionlog.find({what: 'balancer.round'}).sort({time: -1}).limit(BALANCER_ROUNDS).toArray();
  const failed = rounds.filter((round) => round.details.errorOccured);
  print('\tFailed balancer rounds in last ' + BALANCER_ROUNDS + ' attempts:  ' + failed.length);
  if (failed.length > 0) {
    print('\tLast reported error:  ' + failed[0].details.errmsg);
    print('\tTime of Reported error:  ' + failed[0].time);
  }
  print('\tMigration Results for the last 24 hours: ');
  const results = migrationResults(config);
  if (results.length === 0) print('\t\tNo recent migrations');
  for (const result of results) print('\t\t' + result);
}

function migrationResults(config) {
  const yesterday = new Date(Date.now() - 24 * 3600 * 1000);
  const counted = config.changelog.aggregate([
    {$match: {what: 'moveChunk.from', time: {$gt: yesterday}}},
    {$project: {failed: {$or: [{$ne: ['$details.note', 'success']}, {$gt: ['$details.errmsg', null]}]}, details: 1}},
    {$group: {
      _id: {$cond: ['$failed', {msg: {$ifNull: ['$details.errmsg', 'aborted']}, from: '$details.from', to: '$details.to'}, null]},
      n: {$sum: 1},
    }},
    {$sort: {_id: 1}},
  ]).toArray();
  return counted.map(({_id, n}) => n + ' : ' +
    (_id === null ? 'Success' : "Failed with error '" + _id.msg + "', from " + _id.from + ' to ' + _id.to));
}

function printChunks(config, collection, verbose) {
  print('\t\t' + collection._id + ' chunks:');
  const counts = chunkCounts(config, collection._id);
  for (const [shard, count] of Object.entries(counts)) print('\t\t\t\t' + shard + '\t' + count);
  const total = Object.values(counts).reduce((a, b) => a + b, 0);
  if (total > LISTED_CHUNKS_MAX && !verbose) {
    print('\t\t\ttoo many chunks to print, use verbose if you want to force print');
    return;
  }
  config.chunks.find(chunkFilter(config, collection._id)).sort({min: 1}).forEach((chunk) => {
    const version = {t: chunk.lastmod.getTime(), i: chunk.lastmod.getInc()};
    print('\t\t\t' + tojson(chunk.min, '', true) + ' -->> ' + tojson(chunk.max, '', true) + ' on : ' + chunk.shard + ' ' + tojson(version, '', true));
  });
}

function bytesText(bytes) {
  let value = Number(bytes), unit = 0;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024;
  return Math.floor(value * 100) / 100 + units[unit];
}

function percent(part, whole) {
  return Number(whole) === 0 ? '0%' : Math.round(Number(part) / Number(whole) * 10000) / 100 + '%';
}
