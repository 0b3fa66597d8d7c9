// The prompt's own words: show, use, it, help; how a result is printed; what can be completed.

const INTERACTIVE = {
  use(name) {
    if (!name) throw new Error('use needs a database name');
    globalThis.db = db.getMongo().getDB(name);
    print('switched to db ' + db.getName());
  },
  it() {
    if (continued) printCursor(continued); else print('no cursor');
  },
  help() {
    print('\tdb.help()                    help on db methods');
    print('\tdb.mycoll.help()             help on collection methods');
    print('\tsh.help()                    sharding helpers');
    print('\trs.help()                    replica set helpers');
    print('\tshow dbs                     show database names');
    print('\tshow collections             show collections in current database');
    print('\tshow log [name]              prints out the last segment of log in memory');
    print('\tuse <db_name>                set current database');
    print('\tdb.foo.find()                list objects in collection foo');
    print('\tdb.foo.find( { a : 1 } )     list objects in foo where a == 1');
    print('\tit                           result of the last line evaluated; use to further iterate');
    print('\texit                         quit the mongo shell');
  },
  show(what, name) {
    const shows = {
      dbs() {
        for (const database of db.getMongo().getDBs().databases) {
          const gigabytes = Number(database.sizeOnDisk || 0) / 2 ** 30;
          print(database.name + '\t' + gigabytes.toFixed(3) + 'GB');
        }
      },
      collections() { for (const collection of db.getCollectionNames()) print(collection); },
      profile() { print('no profile of ' + db.getName()); },
      logs() { for (const log of okOrThrow(db.adminCommand({getLog: '*'})).names) print(log); },
      log() { for (const line of okOrThrow(db.adminCommand({getLog: name || 'global'})).log) print(line); },
    };
    shows.databases = shows.dbs;
    shows.tables = shows.collections;
    if (!shows[what]) throw new Error("don't know how to show [" + what + ']');
    shows[what]();
  },
};

// A line that is one of the shell's own words is done here; `false` says that it is JavaScript.
function shellWord(line) {
  const words = line.trim().replace(/;$/, '').trim().split(/\s+/);
  const [word] = words;
  const takes = {use: 2, it: 1, help: 1, show: 3};
  if (!Object.hasOwn(takes, word) || words.length > takes[word]) return false;
  if (word === 'show' && words.length < 2) return false;
  if (word === 'use' && words.length < 2) return false;
  INTERACTIVE[word](...words.slice(1));
  return true;
}

function shellPrint(value) {
  if (value === undefined) return;
  if (value !== null && typeof value === 'object' && typeof value.shellPrint === 'function' && Object.getPrototypeOf(value) !== Object.prototype
      || value === rs || value === sh) {
    value.shellPrint();
  } else if (typeof value === 'string') {
    print(value);
  } else if (typeof value === 'function') {
    print(String(value));
  } else {
    print(tojson(value));
  }
}

// What a prompt shows before the `>`: the member's state in its set, or that this is a router.
function shellPrompt() {
  try {
    const hello = db.getMongo().adminCommand({isMaster: 1});
    if (hello.msg === 'isdbgrid') return 'mongos> ';
    if (hello.setName) {
      const state = hello.ismaster ? 'PRIMARY' : hello.secondary ? 'SECONDARY' : hello.arbiterOnly ? 'ARBITER' : stateOfSelf();
      return hello.setName + ':' + state + '> ';
    }
    if (hello.isreplicaset || /EMPTYCONFIG|not yet initialized/.test(hello.info || '')) return '> ';
  } catch (error) {
    return '(not connected)> ';
  }
  return '> ';
}

function stateOfSelf() {
  const status = db.getMongo().adminCommand({replSetGetStatus: 1});
  const self = (status.members || []).find((member) => member.self);
  return self ? self.stateStr : 'OTHER';
}

// What can follow `show` and `use`.
function wordsAfter(word) {
  if (word === 'use') return db.getMongo().getDBNames();
  return ['dbs', 'databases', 'collections', 'tables', 'profile', 'logs', 'log'];
}

// Names that can stand in the place of the word before the cursor: `db.po` → `db.posts`.
function shellComplete(text) {
  const own = /^\s*(show|use)\s+([\w$-]*)$/.exec(text);
  if (own) return wordsAfter(own[1]).filter((name) => name.startsWith(own[2]) && /^[\w$]+$/.test(name)).sort();
  text = /[\p{L}\p{N}_$.]*$/u.exec(text)[0];
  const dot = text.lastIndexOf('.');
  // What stands before the point is more than names: to know it, it would have to be run.
  if (dot === 0) return [];
  const stem = dot < 0 ? '' : text.slice(0, dot);
  const start = text.slice(dot + 1);
  let names = [];
  if (stem === '') {
    names = Object.getOwnPropertyNames(globalThis).concat(['db', 'rs', 'sh', 'show', 'use', 'it', 'help', 'exit', 'var', 'function', 'return']);
  } else {
    let holder;
    try { holder = (0, eval)(stem); } catch (error) { return []; }
    if (holder === null || holder === undefined) return [];
    for (let at = Object(holder); at && at !== Object.prototype; at = Object.getPrototypeOf(at)) {
      names = names.concat(Object.getOwnPropertyNames(at));
    }
    if (holder instanceof DB) names = names.concat(holder.getCollectionNames());
  }
  return [...new Set(names)].filter((name) => name.startsWith(start) && !name.startsWith('_') && /^[\w$]+$/.test(name)).sort()
    .map((name) => (stem === '' ? name : stem + '.' + name));
}
