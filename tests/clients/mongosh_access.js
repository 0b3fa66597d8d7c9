// Logged in as root: users and roles by the shell's helpers.

function fails(action, code) {
  try {
    action();
  } catch (error) {
    if (error.code === code) {
      return;
    }
    throw error;
  }
  throw new Error('was not refused');
}

const test = db.getSiblingDB('test');
test.createUser({ user: 'shell', pwd: 'shell', roles: ['read'], customData: { a: 1 } });
fails(() => test.createUser({ user: 'shell', pwd: 'shell', roles: [] }), 51003);
if (test.getUser('shell').customData.a !== 1 || test.getUsers().users.length < 1) {
  throw new Error('the user is not shown');
}
test.createRole({
  role: 'inserts',
  privileges: [{ resource: { db: 'test', collection: 'shell' }, actions: ['insert'] }],
  roles: [],
});
test.grantRolesToUser('shell', ['inserts']);
if (!test.auth('shell', 'shell')) {
  throw new Error('no login');
}
fails(() => test.auth('shell', 'wrong'), 18);
db.getSiblingDB('admin').logout();
test.shell.insertOne({ a: 1 });
fails(() => test.shell.updateOne({}, { $set: { a: 2 } }), 13);
fails(() => test.dropUser('shell'), 13);
print('access complete');
