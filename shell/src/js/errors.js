// Errors as they are thrown and printed: each once, with the server's code and its name.

// A command that failed: `MongoServerError[NotWritablePrimary]: not primary`.
class MongoServerError extends Error {
  constructor(reply) {
    super(reply.errmsg || tojson(reply));
    for (const [name, value] of Object.entries({code: reply.code, codeName: reply.codeName, reply})) {
      Object.defineProperty(this, name, {value, writable: true, configurable: true});
    }
  }
  get name() { return 'MongoServerError'; }
  toString() {
    const kind = this.codeName || this.code;
    return 'MongoServerError' + (kind === undefined ? '' : '[' + kind + ']') + ': ' + this.message;
  }
}

function commandError(reply) { return new MongoServerError(reply); }

function okOrThrow(reply) {
  if (!reply.ok) throw commandError(reply);
  return reply;
}

// One that holds a document, which is how it is printed: `WriteError({ … })`, and plainly in others.
class ToldError extends Error {
  constructor(message, told) {
    super(message);
    Object.assign(this, told);
  }
  get name() { return this.constructor.name; }
  tojson(indent, nolint) { return tojson(Object.assign({}, this), indent, nolint); }
  toString() { return this.name + '(' + this.tojson() + ')'; }
}

// One document of a write was refused.
class WriteError extends ToldError {
  constructor(given, op) {
    const {index, code, codeName, errmsg, errInfo} = given;
    super(errmsg, withoutUndefined({index, code, codeName, errmsg, errInfo, op}));
  }
}

// The write was made, but not acknowledged by the members that its write concern names.
class WriteConcernError extends ToldError {
  constructor(given, result) {
    const {code, codeName, errmsg, errInfo} = given;
    super(errmsg, withoutUndefined({code, codeName, errmsg, errInfo}));
    Object.defineProperty(this, 'result', {value: result, writable: true});
  }
  toString() {
    const result = this.result === undefined ? '' : ' Result: ' + tojson(this.result, '', true);
    return super.toString() + '\nThe write was made; only the wait for other members failed.' + result;
  }
}

// A bulk of writes of which some were refused, or not acknowledged as was asked.
class BulkWriteError extends ToldError {
  constructor(counts) {
    const first = counts.writeErrors[0] || counts.writeConcernErrors[0];
    super(first.errmsg, counts);
    Object.defineProperty(this, 'code', {value: first.code});
  }
  toResult() { return new BulkWriteResult(Object.assign({}, this)); }
}

function withoutUndefined(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}

// The error of a write's reply, if there is one. `result` is what the write would return, `op` finds
// the operation of an index.
function throwWriteErrors(reply, result, op) {
  okOrThrow(reply);
  if (reply.writeErrors && reply.writeErrors.length) {
    const [error] = reply.writeErrors;
    throw new WriteError(error, op && op(Number(error.index)));
  }
  if (reply.writeConcernError) throw new WriteConcernError(reply.writeConcernError, result);
  return reply;
}
