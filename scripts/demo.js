// The walk-through of scripts/demo, played in the `mongo` shell against a router.

const COUNT = 200000;
const BATCH = 1000;
const TAGS = ('art asia beer bikes books bread cars cats chess code coffee data design dogs film fish food football ' +
  'games garden hiking history jazz law maths moon music opera paint photo poetry radio rain rust sailing ' +
  'science ski space tea theatre trains travel wine').split(' ');

function must(reply, what) {
  if (!reply.ok) throw new Error(what + ': ' + tojson(reply));
  return reply;
}

function step(text) { print('\n== ' + text); }

// The same posts at every run.
let seed = 20121121;
function random(below) {
  seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff;
  return (seed >> 8) % below;
}
const expected = {};
function post(number) {
  const tags = [];
  for (let left = 2 + random(4); left > 0; left--) {
    const tag = TAGS[random(TAGS.length)];
    tags.push(tag);
    expected[tag] = (expected[tag] || 0) + 1;
  }
  return {id: String(number), content: 'data for content ' + number, tags};
}

function chunksByShard() {
  return chunkCounts(db.getSiblingDB('config'), 'test.posts');
}

step('A collection sharded by id');
db.dropDatabase();
must(db.adminCommand({enablesharding: 'test'}), 'enablesharding');
printjson(must(db.adminCommand({shardcollection: 'test.posts', key: {id: 1}}), 'shardcollection'));

step('Loading ' + COUNT + ' posts');
const started = Date.now();
for (let from = 0; from < COUNT; from += BATCH) {
  const batch = [];
  for (let at = from; at < from + BATCH; at++) batch.push(post(at));
  db.posts.insertMany(batch, {ordered: false});
  const done = from + BATCH;
  if (done % 20000 === 0) {
    const seconds = (Date.now() - started) / 1000;
    print('  ' + done + ' posts in ' + seconds.toFixed(1) + ' s; chunks: ' + tojson(chunksByShard(), '', true));
  }
}
if (db.posts.countDocuments({}) !== COUNT) throw new Error('posts are missing: ' + db.posts.countDocuments({}));

step('Waiting until the balancer has spread them');
const shards = must(db.adminCommand({listShards: 1}), 'listShards').shards.length;
const deadline = Date.now() + 120000;
for (;;) {
  const chunks = Object.values(chunksByShard());
  const total = chunks.reduce((a, b) => a + b, 0);
  if (chunks.length === shards && Math.min(...chunks) * shards * 1.5 >= total) break;
  if (Date.now() > deadline) throw new Error('the chunks are not spread: ' + tojson(chunksByShard()));
  sleep(200);
}
print('  chunks: ' + tojson(chunksByShard(), '', true));

step('Counting tags with map-reduce');
printjson(must(db.runCommand({
  mapreduce: 'posts',
  map: function () { for (index in this.tags) { emit(this.tags[index], 1); } },
  reduce: function (key, values) { var sum = 0; for (var i = 0; i < values.length; i++) { sum += values[i]; } return sum; },
  out: 'tags',
}), 'mapreduce'));

step('The tags');
let line = '';
db.tags.find().sort({_id: 1}).forEach((row) => {
  if (expected[row._id] !== row.value) {
    throw new Error(row._id + ': counted ' + row.value + ', loaded ' + expected[row._id]);
  }
  line += (row._id + ' ').padEnd(12, '.') + String(row.value).padStart(7) + '   ';
  if (line.length > 80) { print('  ' + line); line = ''; }
});
if (line) print('  ' + line);
if (db.tags.count() !== TAGS.length) throw new Error('tags: ' + db.tags.count());
print('  ' + db.tags.count() + ' tags, all as loaded');

step('Where the chunks are');
sh.status(true);
