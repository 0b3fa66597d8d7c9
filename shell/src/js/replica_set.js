// rs.*: replica sets.

function requireConfig(config) {
  if (typeof config !== 'object' || config === null || Array.isArray(config)) {
    throw new Error('Expected a configuration document, as rs.conf() returns it, but got ' + tojson(config));
  }
}
function requireHost(host) {
  if (typeof host !== 'string' || host === '') throw new Error('Expected a host-and-port string, but got ' + tojson(host));
}
function requireSeconds(seconds) {
  const isNumber = typeof seconds === 'number' || seconds instanceof NumberLong || seconds instanceof NumberInt;
  if (!isNumber || Number.isNaN(Number(seconds))) throw new Error('Expected a number of seconds, but got ' + tojson(seconds));
}

const rs = {
  status() { return db._adminCommand({replSetGetStatus: 1}); },
  conf() {
    const reply = db._adminCommand({replSetGetConfig: 1});
    if (reply.ok) return reply.config;
    const stored = db.getSiblingDB('local').system.replset.findOne();
    if (stored) return stored;
    throw commandError(reply);
  },
  isMaster() { return db.isMaster(); },
  hello() { return db.hello(); },
  initiate(config) { return db._adminCommand({replSetInitiate: config}); },
  reconfig(config, options) {
    requireConfig(config);
    if (options !== undefined && (typeof options !== 'object' || options === null)) {
      throw new Error('Expected options, as {force: true}, but got ' + tojson(options));
    }
    const next = Object.assign({}, config, {version: Number(rs.conf().version) + 1});
    return db._adminCommand(Object.assign({replSetReconfig: next}, options));
  },
  // In two steps, as each may change one vote or give one member a say in who leads.
  reconfigForPSASet(index, config, options) {
    requireConfig(config);
    const member = (config.members || [])[index];
    if (!member) throw new Error('There is no member at ' + index + ' of the new configuration');
    if (!member.votes || !member.priority) throw new Error('The member at ' + index + ' must have a vote and a priority');
    const before = rs.conf();
    const old = before.members.find((known) => Number(known._id) === Number(member._id));
    if (old && old.votes === 1 && old.priority > 0) return rs.reconfig(config, options);
    const first = Object.assign({}, config, {members: config.members.map((known, at) =>
      at === index ? Object.assign({}, known, {priority: 0}) : known)});
    okOrThrow(rs.reconfig(first, options));
    return rs.reconfig(config, options);
  },
  // A member that is added votes once it has caught up; the primary sees to that, one at a time.
  add(hostOrMember, arbiter) {
    const config = rs.conf();
    const free = 1 + Math.max(...config.members.map((member) => Number(member._id)));
    const isHost = typeof hostOrMember === 'string';
    if (!isHost && (typeof hostOrMember !== 'object' || hostOrMember === null)) {
      throw new Error('Expected a host-and-port string or a member document, but got ' + tojson(hostOrMember));
    }
    if (!isHost && arbiter !== undefined) throw new Error('With a member document the second argument is not used: say arbiterOnly in the document');
    const member = isHost ? {_id: free, host: hostOrMember} : Object.assign({}, hostOrMember);
    if (member._id === undefined || member._id === null) member._id = free;
    if (arbiter === true) member.arbiterOnly = true;
    config.members.push(member);
    config.version = Number(config.version) + 1;
    return db._adminCommand({replSetReconfig: config});
  },
  addArb(host) { return rs.add(host, true); },
  remove(host) {
    requireHost(host);
    const config = rs.conf();
    const kept = config.members.filter((member) => member.host !== host);
    if (kept.length === config.members.length) {
      const hosts = config.members.map((member) => member.host).join(', ');
      throw new Error("Couldn't find " + host + ' in ' + hosts + '. Is ' + host + ' a member of this replset?');
    }
    config.members = kept;
    config.version = Number(config.version) + 1;
    return db._adminCommand({replSetReconfig: config});
  },
  stepDown(seconds, catchUpSeconds) {
    if (seconds !== undefined && seconds !== null) requireSeconds(seconds);
    if (catchUpSeconds !== undefined && catchUpSeconds !== null) requireSeconds(catchUpSeconds);
    const command = {replSetStepDown: seconds === undefined || seconds === null ? 60 : seconds};
    if (catchUpSeconds !== undefined && catchUpSeconds !== null) command.secondaryCatchUpPeriodSecs = catchUpSeconds;
    return db._adminCommand(command);
  },
  freeze(seconds) {
    requireSeconds(seconds);
    return db._adminCommand({replSetFreeze: seconds});
  },
  syncFrom(host) {
    requireHost(host);
    return db._adminCommand({replSetSyncFrom: host});
  },
  slaveOk(value) { db.getMongo().setSlaveOk(value); },
  secondaryOk(value) { db.getMongo().setSlaveOk(value); },
  printReplicationInfo() { db.printReplicationInfo(); },
  printSecondaryReplicationInfo() { db.printSecondaryReplicationInfo(); },
  printSlaveReplicationInfo() { db.printSecondaryReplicationInfo(); },
  help() {
    print('\trs.status()                  the state of the set');
    print('\trs.initiate([config])        makes a set of this member, or of those in config');
    print('\trs.conf()                    the configuration');
    print('\trs.reconfig(config)          changes the configuration');
    print('\trs.add(host or member)       adds a member');
    print('\trs.addArb(host)              adds an arbiter');
    print('\trs.remove(host)              removes a member');
    print('\trs.reconfig(config, {force: true})  the same for a set that has lost its majority');
    print('\trs.stepDown([seconds[, catchUpSeconds]])  the primary gives the lead away');
    print('\trs.freeze(seconds)           this member does not seek election for that long');
    print('\trs.syncFrom(host)            whom this member should follow (it follows the primary)');
    print('\trs.secondaryOk()             reads from secondaries; db.getMongo().setReadPref(mode) says it in detail');
    print('\trs.hello(), rs.isMaster()    who leads');
    print('\trs.printReplicationInfo()    how far back the log reaches');
    print('\trs.printSecondaryReplicationInfo()  how far the secondaries are');
  },
  toString() { return 'replica set helpers; see rs.help()'; },
};
rs.config = rs.conf;
Object.defineProperty(rs, 'shellPrint', {value: () => rs.help()});
