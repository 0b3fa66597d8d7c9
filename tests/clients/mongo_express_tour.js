// mongo-express, started against the address given and used as a browser uses it.
const { spawn } = require('node:child_process');
const net = require('node:net');
const assert = require('node:assert');
const path = require('node:path');

const { MongoClient } = require('mongodb');

const modules = path.join(__dirname, '../../.node/node_modules');

const freePort = () => new Promise((resolve) => {
  const server = net.createServer().listen(0, '127.0.0.1', () => {
    const { port } = server.address();
    server.close(() => resolve(port));
  });
});

// What a page says, without its marks.
const textOf = (html) => html
  .replace(/<script[\s\S]*?<\/script>|<style[\s\S]*?<\/style>|<[^>]*>/g, ' ')
  .replace(/&quot;/g, '"').replace(/&#39;/g, "'").replace(/&amp;/g, '&')
  .replace(/\s+/g, ' ');

function browser(base) {
  const cookies = new Map();
  let token = '';
  async function request(method, where, form) {
    const headers = { cookie: [...cookies].map((pair) => pair.join('=')).join('; '), referer: `${base}/` };
    const options = { method, headers, redirect: 'manual' };
    if (form) {
      // Forms know POST alone; another method is a field.
      const fields = { _csrf: token, ...(method !== 'POST' && { _method: method.toLowerCase() }), ...form };
      options.method = 'POST';
      options.body = new URLSearchParams(fields);
    }
    const reply = await fetch(base + where, options);
    for (const cookie of reply.headers.getSetCookie()) {
      const [, name, value] = /^([^=]*)=([^;]*)/.exec(cookie);
      cookies.set(name, value);
    }
    const html = await reply.text();
    token = /name="_csrf" value="([^"]+)"/.exec(html)?.[1] ?? token;
    return { status: reply.status, location: reply.headers.get('location'), html, text: textOf(html) };
  }
  const get = (where) => request('GET', where);
  // What a form answers is a redirection; the page behind it shows what came of it.
  async function submit(method, where, form) {
    const reply = await request(method, where, form);
    assert.strictEqual(reply.status, 302, `${method} ${where}: ${reply.status} ${reply.text}`);
    const next = new URL(reply.location, base);
    return get(next.pathname + next.search);
  }
  return { get, submit };
}

async function main(uri) {
  const port = await freePort();
  const others = await MongoClient.connect(uri);
  const express = spawn(process.execPath, ['app.js', '-U', uri, '-a', '--port', String(port)], {
    cwd: path.join(modules, 'mongo-express'),
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, VCAP_APP_HOST: '127.0.0.1', ME_CONFIG_BASICAUTH_USERNAME: '' },
  });
  const ended = new Promise((resolve) => { express.once('exit', resolve); });
  let said = '';
  try {
    await new Promise((resolve, reject) => {
      const hear = (bytes) => {
        said += bytes;
        if (said.includes('listening')) resolve();
      };
      express.stdout.on('data', hear);
      express.stderr.on('data', hear);
      ended.then(() => reject(new Error('mongo-express ended')));
      setTimeout(() => reject(new Error('mongo-express does not listen')), 30000).unref();
    });
    await tour(browser(`http://127.0.0.1:${port}`), others);
  } catch (error) {
    error.message += '\n' + said;
    throw error;
  } finally {
    await others.close();
    express.kill();
    await ended;
  }
  console.log('mongo-express complete');
}

async function tour(web, others) {
  const shows = (page, ...words) => {
    for (const word of words) assert.ok(page.text.includes(word), `${word} is missing:\n${page.text}`);
  };
  const hides = (page, ...words) => {
    for (const word of words) assert.ok(!page.text.includes(word), `${word} is there:\n${page.text}`);
  };
  shows(await web.get('/'), 'Databases', 'Server Status', 'Uptime', 'Current Connections', 'Total Inserts');

  // Databases and collections.
  shows(await web.submit('POST', '/', { database: 'by_web' }), 'by_web');
  shows(await web.submit('POST', '/db/by_web', { collection: 'posts' }), 'Viewing Collection: posts');
  shows(await web.submit('POST', '/db/by_web', { collection: 'posts' }), 'already exists');
  shows(await web.get('/db/by_web'), 'posts', 'delete_me', 'Database Stats', 'Indexes # 2');
  shows(await web.submit('DELETE', '/db/by_web/delete_me', {}), 'deleted');
  hides(await web.get('/db/by_web'), 'delete_me');

  // Documents.
  const here = '/db/by_web/posts';
  for (const [id, text] of [['000000000000000000000001', 'first'], ['000000000000000000000002', 'second']]) {
    const document = `{_id: ObjectId("${id}"), text: "${text}", n: ${id.at(-1)}, list: [1, {a: 2}]}`;
    shows(await web.submit('POST', here, { document }), 'Document added!', text);
  }
  const again = await web.submit('POST', here, { document: '{_id: ObjectId("000000000000000000000001")}' });
  shows(again, 'E11000 duplicate key error collection: by_web.posts');
  shows(await web.submit('POST', here, { document: '{_id: "a word"}' }), 'Document added!', 'a word');
  const document = (id) => `${here}/${encodeURIComponent(JSON.stringify(id))}`;
  const first = document('000000000000000000000001');
  shows(await web.get(first), 'Editing Document', 'first');
  shows(await web.get(document('a word')), 'a word');
  shows(await web.submit('PUT', first, { document: '{text: "edited", n: 1}' }), 'Document updated!', 'edited');
  assert.strictEqual((await web.get(`${first}/text`)).html, 'edited');
  shows(await web.submit('DELETE', document('a word'), {}), 'Document deleted! _id: a word');
  await web.get(document('nobody'));
  shows(await web.get(here), 'Document not found!');

  // Queries: by a key and its value, in free form, sorted, as a pipeline; and one that the server refuses.
  const query = (fields) => web.get(`${here}?${new URLSearchParams(fields)}`);
  const simple = await query({ key: 'n', value: 2, type: 'N' });
  shows(simple, 'second');
  hides(simple, 'edited');
  const advanced = await query({ query: '{n: {$lt: 2}}', projection: '{text: 1}', 'sort[n]': -1 });
  shows(advanced, 'edited');
  hides(advanced, 'second');
  const grouped = await query({ runAggregate: 'on', query: '[{$group: {_id: "in all", sum: {$sum: "$n"}}}]' });
  shows(grouped, 'in all', '3');
  assert.strictEqual((await query({ query: '{n: {$wrong: 2}}' })).status, 302);

  // Indexes.
  const indexed = await web.submit('POST', '/db/by_web/addIndex/posts', { index: '{n: -1}' });
  shows(indexed, 'Index created!', 'n_-1', '_id_', 'DSC');
  assert.strictEqual((await web.get('/db/by_web/dropIndex/posts?name=n_-1')).status, 302);
  shows(await web.get('/'), 'Index deleted!');
  await web.get('/db/by_web/dropIndex/posts?name=nope');
  shows(await web.get('/'), 'index not found with name [nope]');
  await web.get('/db/by_web/compact/posts');
  shows(await web.get('/'), 'Collection compacted!');

  // Exports.
  const lines = (await web.get('/db/by_web/export/posts')).html;
  const array = JSON.parse((await web.get('/db/by_web/expArr/posts')).html);
  assert.deepStrictEqual(array.map((post) => post.n), [1, 2]);
  assert.ok(lines.includes('"text":"second"'), lines);
  assert.ok(/second/.test((await web.get('/db/by_web/expCsv/posts?query=' + encodeURIComponent('{n: 2}'))).html));

  // What somebody else has put there, page by page; renamed, emptied, removed.
  await others.db('by_web').collection('many').insertMany(Array.from({ length: 25 }, (_, n) => ({ _id: `many${n}`, n })));
  const renamed = await web.submit('PUT', '/db/by_web/many', { collection: 'renamed' });
  shows(renamed, 'Collection renamed!', 'Viewing Collection: renamed');
  shows(await web.get('/db/by_web/renamed?skip=20&sort[_id]=1'), 'many9');
  await web.submit('DELETE', '/db/by_web/renamed?query=' + encodeURIComponent('{n: {$gte: 5}}'), {});
  assert.strictEqual(await others.db('by_web').collection('renamed').countDocuments(), 5);
  shows(await web.submit('DELETE', '/db/by_web/renamed', {}), 'deleted');
  hides(await web.submit('DELETE', '/by_web', {}), 'by_web');
}

main(process.argv[2]).catch((error) => { console.error(error); process.exit(1); });
