// rs.*: replica sets.

const rs = {
  status() { return db._adminCommand({replSetGetStatus: 1}); },
  conf() {
    const reply = db._adminCommand({replSetGetConfig: 1});
    if (reply.ok) return reply.config;
    const stored = db.getSiblingDB('local').system.replset.findOne();
    if (stored) return stored;
    throw commandError(reply, 'Could not retrieve replica set config');
  },
  isMaster() { return db.isMaster(); },
  hello() { return db.hello(); },
  initiate(config) { return db._adminCommand({replSetInitiate: config}); },
  reconfig(config, options) {
    const next = Object.assign({}, config, {version: Number(rs.conf().version) + 1});
    return db._adminCommand(Object.assign({replSetReconfig: next}, options));
  },
  add(hostOrMember, arbiter) {
    const config = rs.conf();
    const free = 1 + Math.max(...config.members.map((member) => Number(member._id)));
    const member = typeof hostOrMember === 'string' ? {_id: free, host: hostOrMember} : Object.assign({_id: free}, hostOrMember);
    if (arbiter === true) member.arbiterOnly = true;
    config.members.push(member);
    config.version = Number(config.version) + 1;
    return db._adminCommand({replSetReconfig: config});
  },
  addArb(host) { return rs.add(host, true); },
  remove(host) {
    const config = rs.conf();
    const kept = config.members.filter((member) => member.host !== host);
    if (kept.length === config.members.length) throw new Error("Couldn't find " + host + ' in ' + tojson(config.members) + '.');
    config.members = kept;
    config.version = Number(config.version) + 1;
    return db._adminCommand({replSetReconfig: config});
  },
  stepDown(seconds, catchUpSeconds) {
    const command = {replSetStepDown: seconds === undefined ? 60 : seconds};
    if (catchUpSeconds !== undefined) command.secondaryCatchUpPeriodSecs = catchUpSeconds;
    return db._adminCommand(command);
  },
  freeze(seconds) { return db._adminCommand({replSetFreeze: seconds}); },
  syncFrom(host) { return db._adminCommand({replSetSyncFrom: host}); },
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
    print('\trs.stepDown([seconds])       the primary steps down');
    print('\trs.freeze(seconds)           this member does not seek election for that long');
    print('\trs.secondaryOk()             allows reads on this connection to a secondary');
    print('\trs.hello(), rs.isMaster()    who leads');
  },
  toString() { return 'replica set helpers; see rs.help()'; },
};
rs.config = rs.conf;
Object.defineProperty(rs, 'shellPrint', {value: () => rs.help()});
