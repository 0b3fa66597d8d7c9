// The shell's types and helpers. Runs once per context, before any other script, and is given
// `native`: what only Rust can do. The values live in instances that Rust makes
// (`native.make`); a payload is what such an instance holds: bytes as a string with one
// character per byte, a BigInt, a number or a string.
(function (native) {
  "use strict";

  const global = globalThis;
  const { make, payload, second, tagOf, types } = native;

  function hide(target, members) {
    for (const name of Object.keys(members)) {
      const given = Object.getOwnPropertyDescriptor(members, name);
      given.enumerable = false;
      given.configurable = true;
      Object.defineProperty(target, name, given);
    }
  }

  // A type can be called with and without `new`.
  function defineType(name, build, members, statics) {
    const type = function (...args) {
      return build(args);
    };
    const prototype = native.prototype(types[name]);
    Object.defineProperty(type, "name", { value: name });
    Object.defineProperty(type, "prototype", { value: prototype, writable: false });
    hide(prototype, { constructor: type });
    hide(prototype, members);
    hide(type, statics || {});
    hide(global, { [name]: type });
    return type;
  }

  function is(value, name) {
    return tagOf(value) === types[name];
  }

  function quoted(text) {
    return JSON.stringify(text);
  }

  function integer(value, what) {
    const number = Number(value);
    if (!Number.isFinite(number)) {
      throw new Error(what + " must be a number");
    }
    return Math.trunc(number);
  }

  // ObjectId

  const ObjectId = defineType(
    "ObjectId",
    function ([id]) {
      if (id === undefined) {
        return make(types.ObjectId, native.newObjectId());
      }
      if (is(id, "ObjectId")) {
        return make(types.ObjectId, payload(id));
      }
      if (typeof id !== "string" || !/^[0-9a-fA-F]{24}$/.test(id)) {
        throw new Error("invalid object id: length");
      }
      return make(types.ObjectId, native.unhex(id));
    },
    {
      get str() {
        return native.hex(payload(this));
      },
      toString() {
        return 'ObjectId("' + this.str + '")';
      },
      toHexString() {
        return this.str;
      },
      valueOf() {
        return this.str;
      },
      tojson() {
        return this.toString();
      },
      toJSON() {
        return { $oid: this.str };
      },
      getTimestamp() {
        return new Date(parseInt(this.str.slice(0, 8), 16) * 1000);
      },
      equals(other) {
        return is(other, "ObjectId") && payload(this) === payload(other);
      },
      isObjectId: true,
    },
    {
      fromDate(date) {
        const seconds = Math.floor(new Date(date).getTime() / 1000);
        return ObjectId((seconds >>> 0).toString(16).padStart(8, "0") + "0".repeat(16));
      },
    },
  );
  hide(global, { ObjectID: ObjectId });

  // Numbers

  const LONG_QUOTED_FROM = 2147483648n;

  function toLong(value) {
    if (value === undefined) {
      return 0n;
    }
    if (is(value, "NumberLong")) {
      return payload(value);
    }
    if (typeof value === "bigint") {
      return BigInt.asIntN(64, value);
    }
    if (typeof value === "string") {
      if (!/^\s*[-+]?[0-9]+\s*$/.test(value)) {
        throw new Error("could not convert \"" + value + "\" to NumberLong");
      }
      const long = BigInt(value.trim().replace(/^\+/, ""));
      if (BigInt.asIntN(64, long) !== long) {
        throw new Error("could not convert \"" + value + "\" to NumberLong");
      }
      return long;
    }
    const number = Number(value);
    if (Number.isNaN(number)) {
      return 0n;
    }
    if (number >= 9223372036854775807) {
      return 9223372036854775807n;
    }
    if (number <= -9223372036854775808) {
      return -9223372036854775808n;
    }
    return BigInt(Math.trunc(number));
  }

  defineType(
    "NumberLong",
    function (args) {
      if (args.length === 3) {
        return make(types.NumberLong, BigInt.asIntN(64, (BigInt(args[1]) << 32n) | BigInt(args[2] >>> 0)));
      }
      return make(types.NumberLong, toLong(args[0]));
    },
    {
      toNumber() {
        return Number(payload(this));
      },
      valueOf() {
        return Number(payload(this));
      },
      toString() {
        const long = payload(this);
        const plain = long < LONG_QUOTED_FROM && long > -LONG_QUOTED_FROM;
        return plain ? "NumberLong(" + long + ")" : 'NumberLong("' + long + '")';
      },
      tojson() {
        return this.toString();
      },
      toJSON() {
        return { $numberLong: String(payload(this)) };
      },
      exactValueString() {
        return String(payload(this));
      },
      compare(other) {
        const a = payload(this);
        const b = toLong(other);
        return a < b ? -1 : a > b ? 1 : 0;
      },
      get floatApprox() {
        return Number(payload(this));
      },
      get top() {
        return Number(payload(this) >> 32n);
      },
      get bottom() {
        return Number(payload(this) & 0xffffffffn);
      },
    },
  );

  defineType(
    "NumberInt",
    function ([value]) {
      return make(types.NumberInt, value === undefined ? 0 : Number(value) | 0);
    },
    {
      toNumber() {
        return payload(this);
      },
      valueOf() {
        return payload(this);
      },
      toString() {
        return "NumberInt(" + payload(this) + ")";
      },
      tojson() {
        return this.toString();
      },
      toJSON() {
        return payload(this);
      },
    },
  );

  defineType(
    "NumberDecimal",
    function ([value]) {
      if (is(value, "NumberDecimal")) {
        return make(types.NumberDecimal, payload(value));
      }
      if (is(value, "NumberLong")) {
        return make(types.NumberDecimal, native.parseDecimal(String(payload(value))));
      }
      const text = value === undefined ? "0" : String(is(value, "NumberInt") ? payload(value) : value);
      return make(types.NumberDecimal, native.parseDecimal(text));
    },
    {
      toString() {
        return 'NumberDecimal("' + native.decimalToString(payload(this)) + '")';
      },
      tojson() {
        return this.toString();
      },
      toJSON() {
        return { $numberDecimal: native.decimalToString(payload(this)) };
      },
      exactValueString() {
        return native.decimalToString(payload(this));
      },
    },
  );

  // Binary

  function dashed(hex) {
    return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
  }

  const BinData = defineType(
    "BinData",
    function ([subtype, base64]) {
      if (typeof base64 !== "string") {
        throw new Error("BinData takes 2 arguments -- BinData(subtype,data)");
      }
      return binary(subtype, native.unbase64(base64));
    },
    {
      get type() {
        return second(this);
      },
      subtype() {
        return second(this);
      },
      get len() {
        return payload(this).length;
      },
      length() {
        return payload(this).length;
      },
      base64() {
        return native.base64(payload(this));
      },
      hex() {
        return native.hex(payload(this));
      },
      toString() {
        const bytes = payload(this);
        if (second(this) === 4 && bytes.length === 16) {
          return 'UUID("' + dashed(native.hex(bytes)) + '")';
        }
        return "BinData(" + second(this) + ',"' + native.base64(bytes) + '")';
      },
      tojson() {
        return this.toString();
      },
      toJSON() {
        const subType = second(this).toString(16).padStart(2, "0");
        return { $binary: { base64: this.base64(), subType } };
      },
    },
  );

  function binary(subtype, bytes) {
    const number = integer(subtype, "BinData subtype");
    if (number < 0 || number > 255) {
      throw new Error("invalid BinData subtype -- range is [0, 255]");
    }
    return make(types.BinData, bytes, number);
  }

  hide(global, {
    HexData: function HexData(subtype, hex) {
      return binary(subtype, native.unhex(String(hex)));
    },
    MD5: function MD5(hex) {
      if (!/^[0-9a-fA-F]{32}$/.test(hex)) {
        throw new Error("MD5 string must have 32 characters");
      }
      return binary(5, native.unhex(hex));
    },
    UUID: function UUID(text) {
      if (text === undefined) {
        return binary(4, native.newUuid());
      }
      const hex = String(text).replace(/-/g, "");
      if (!/^[0-9a-fA-F]{32}$/.test(hex)) {
        throw new Error("Invalid UUID string: " + text);
      }
      return binary(4, native.unhex(hex));
    },
  });

  // Timestamp, keys, code, references

  defineType(
    "Timestamp",
    function ([seconds, increment]) {
      const parts = [seconds, increment].map(function (part) {
        const number = part === undefined ? 0 : integer(part, "Timestamp part");
        if (number < 0 || number > 4294967295) {
          throw new Error("Timestamp parts must be between 0 and 4294967295");
        }
        return number;
      });
      return make(types.Timestamp, parts[0], parts[1]);
    },
    {
      get t() {
        return payload(this);
      },
      get i() {
        return second(this);
      },
      getTime() {
        return payload(this);
      },
      getInc() {
        return second(this);
      },
      toString() {
        return "Timestamp(" + payload(this) + ", " + second(this) + ")";
      },
      tojson() {
        return this.toString();
      },
      toJSON() {
        return { $timestamp: { t: payload(this), i: second(this) } };
      },
    },
  );

  for (const [name, key] of [["MinKey", "$minKey"], ["MaxKey", "$maxKey"]]) {
    const text = '{ "' + key + '" : 1 }';
    const members = {
      toString() {
        return text;
      },
      tojson() {
        return text;
      },
      toJSON() {
        return { [key]: 1 };
      },
    };
    const only = make(types[name]);
    const type = defineType(name, () => only, members);
    // The bare name stands for the value as well: {a: MinKey}.
    hide(type, members);
  }

  defineType(
    "Code",
    function ([code, scope]) {
      return make(types.Code, typeof code === "function" ? code.toString() : String(code), scope);
    },
    {
      get code() {
        return payload(this);
      },
      get scope() {
        return second(this);
      },
      toString() {
        return payload(this);
      },
      tojson(indent, nolint) {
        const scope = second(this);
        const inScope = scope === undefined ? "" : ', "scope" : ' + tojson(scope, indent, nolint);
        return '{ "code" : ' + quoted(payload(this)) + inScope + " }";
      },
      toJSON() {
        const scope = second(this);
        return scope === undefined ? { $code: payload(this) } : { $code: payload(this), $scope: scope };
      },
    },
  );

  defineType(
    "DBPointer",
    function ([namespace, id]) {
      return make(types.DBPointer, String(namespace), payload(ObjectId(id)));
    },
    {
      get ns() {
        return payload(this);
      },
      get id() {
        return make(types.ObjectId, second(this));
      },
      toString() {
        return "DBPointer(" + quoted(this.ns) + ", " + this.id + ")";
      },
      tojson() {
        return this.toString();
      },
    },
  );

  const DBRef = function DBRef(collection, id, database) {
    const reference = Object.create(DBRef.prototype);
    reference.$ref = collection;
    reference.$id = id;
    if (database !== undefined) {
      reference.$db = database;
    }
    return reference;
  };
  hide(DBRef.prototype, {
    getRef() {
      return this.$ref;
    },
    getCollection() {
      return this.$ref;
    },
    getId() {
      return this.$id;
    },
    getDb() {
      return this.$db;
    },
    toString() {
      return this.tojson();
    },
    tojson(indent, nolint) {
      const database = this.$db === undefined ? "" : ", " + tojson(this.$db, indent, nolint);
      return "DBRef(" + quoted(this.$ref) + ", " + tojson(this.$id, indent, nolint) + database + ")";
    },
  });
  hide(global, { DBRef });

  // Dates

  const ISO_DATE =
    /^(\d{4})-?(\d\d)-?(\d\d)(?:[T ](\d\d)(?::?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?)?(Z|[+-]\d\d:?\d\d?)?)?$/;

  hide(global, {
    ISODate: function ISODate(text) {
      if (text === undefined) {
        return new Date();
      }
      const parts = ISO_DATE.exec(String(text));
      if (parts === null) {
        throw new Error("invalid ISO date: " + text);
      }
      const [, year, month, day, hour, minute, second, fraction, zone] = parts;
      const at = new Date(0);
      at.setUTCFullYear(+year, +month - 1, +day);
      const milliseconds = fraction === undefined ? 0 : Math.trunc(Number("0." + fraction) * 1000);
      at.setUTCHours(+(hour || 0), +(minute || 0), +(second || 0), milliseconds);
      if (+month < 1 || +month > 12 || +day < 1 || +day > 31 || +(hour || 0) > 24) {
        throw new Error("invalid ISO date: " + text);
      }
      if (zone !== undefined && zone !== "Z") {
        const digits = zone.slice(1).replace(":", "");
        const minutes = +digits.slice(0, 2) * 60 + +digits.slice(2);
        return new Date(at.getTime() - (zone[0] === "-" ? -minutes : minutes) * 60000);
      }
      return at;
    },
  });

  const dateText = Date.prototype.toString;
  const timeText = Date.prototype.toTimeString;

  // V8 knows zones by their names only with ICU's data: "GMT+0100 ()" becomes "GMT+0100 (CET)".
  function zoned(date, text) {
    const name = Number.isNaN(date.getTime()) ? "" : native.zoneName(date.getTime());
    return text.replace(/ \([^)]*\)$/, name === "" ? "" : " (" + name + ")");
  }

  hide(Date.prototype, {
    toString() {
      return zoned(this, dateText.call(this));
    },
    toTimeString() {
      return zoned(this, timeText.call(this));
    },
    tojson() {
      if (Number.isNaN(this.getTime())) {
        return 'ISODate("Invalid Date")';
      }
      return 'ISODate("' + this.toISOString().replace(".000Z", "Z") + '")';
    },
  });
  hide(RegExp.prototype, {
    tojson() {
      return this.toString();
    },
  });

  // Without ICU's data nothing of Intl works, and some of it ends the process. Scripts find what
  // engines without Intl have: the C locale's forms.

  delete global.Intl;
  delete global.Temporal;

  // Memory outside of the heap's limit, and clocks finer than a script should have.

  delete global.SharedArrayBuffer;
  delete global.Atomics;
  delete global.WebAssembly;

  function two(number) {
    return String(number).padStart(2, "0");
  }

  function clock(date) {
    return [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
  }

  function localeForm(form) {
    return function () {
      return Number.isNaN(this.getTime()) ? "Invalid Date" : form(this);
    };
  }

  hide(Date.prototype, {
    toLocaleString: localeForm((date) => {
      const [weekday, month] = dateText.call(date).split(" ");
      const day = String(date.getDate()).padStart(2);
      return [weekday, month, day, clock(date), date.getFullYear()].join(" ");
    }),
    toLocaleDateString: localeForm((date) =>
      [two(date.getMonth() + 1), two(date.getDate()), date.getFullYear()].join("/"),
    ),
    toLocaleTimeString: localeForm(clock),
  });
  for (const type of [Number, BigInt]) {
    hide(type.prototype, {
      toLocaleString() {
        return type.prototype.toString.call(this);
      },
    });
  }
  hide(String.prototype, {
    localeCompare(other) {
      const [left, right] = [String(this), String(other)];
      return left < right ? -1 : left > right ? 1 : 0;
    },
  });

  // tojson: values in the shell's notation

  const LINE_BYTES_MAX = 80;

  function tojsonArray(array, indent = "", nolint = false) {
    if (array.length === 0) {
      return "[ ]";
    }
    const deeper = nolint ? indent : indent + "\t";
    const parts = [];
    for (let i = 0; i < array.length; i++) {
      parts.push(deeper + tojson(array[i], deeper, nolint));
    }
    const lineEnd = nolint ? " " : "\n";
    return "[" + lineEnd + parts.join("," + lineEnd) + lineEnd + indent + "]";
  }

  function tojsonObject(object, indent, nolint) {
    if (typeof object.tojson === "function" && object.tojson !== tojson) {
      return object.tojson(indent, nolint);
    }
    if (object instanceof Error) {
      return object.toString();
    }
    if (Array.isArray(object)) {
      return tojsonArray(object, indent, nolint);
    }
    if (ArrayBuffer.isView(object)) {
      return tojsonArray(Array.from(object), indent, nolint);
    }
    if (object instanceof Map || object instanceof Set) {
      return tojsonArray(Array.from(object), indent, nolint);
    }
    const deeper = nolint ? indent : indent + "\t";
    const lineEnd = nolint ? " " : "\n";
    const parts = [];
    for (const name of Object.keys(object)) {
      parts.push(deeper + quoted(name) + " : " + tojson(object[name], deeper, nolint));
    }
    if (parts.length === 0) {
      return "{" + lineEnd + (nolint ? "" : indent + "\t") + lineEnd + indent + "}";
    }
    return "{" + lineEnd + parts.join("," + lineEnd) + lineEnd + indent + "}";
  }

  function tojson(value, indent, nolint) {
    if (value === null) {
      return "null";
    }
    if (value === undefined) {
      return "undefined";
    }
    switch (typeof value) {
      case "string":
        return quoted(value);
      case "number":
        return Object.is(value, -0) ? "-0" : String(value);
      case "boolean":
        return String(value);
      case "bigint":
        return 'NumberLong("' + value + '")';
      case "symbol":
        return value.toString();
      case "function":
        if (value === global.MinKey || value === global.MaxKey) {
          return value.tojson();
        }
        return value.toString();
    }
    const at = typeof indent === "string" ? indent : "";
    const text = tojsonObject(value, at, nolint === true);
    if (nolint !== false && at === "" && text.length < LINE_BYTES_MAX) {
      return text.replace(/[\t\r\n]+/g, " ");
    }
    return text;
  }

  hide(global, {
    tojson,
    tojsononeline: function tojsononeline(value) {
      return tojson(value, "", true);
    },
    isString: (value) => typeof value === "string",
    isNumber: (value) => typeof value === "number",
    isObject: (value) => typeof value === "object",
    isArray: Array.isArray,
    hex_md5: native.md5,
    bsonWoCompare: native.compare,
  });

  // Helpers that scripts of the shell's tradition use

  hide(Object, {
    bsonsize: native.bsonSize,
    extend(target, source) {
      for (const name of Object.keys(source)) {
        target[name] = source[name];
      }
      return target;
    },
  });

  hide(Array, {
    contains: (array, value) => array.some((one) => native.compare({ v: one }, { v: value }) === 0),
    sum: (array) => (array.length === 0 ? null : array.reduce((a, b) => a + b)),
    avg: (array) => (array.length === 0 ? null : Array.sum(array) / array.length),
    unique(array) {
      const kept = [];
      for (const one of array) {
        if (!Array.contains(kept, one)) {
          kept.push(one);
        }
      }
      return kept;
    },
    stdDev(array) {
      const mean = Array.avg(array);
      const squares = array.map((one) => (one - mean) * (one - mean));
      return Math.sqrt(Array.avg(squares));
    },
    tojson: tojsonArray,
  });

  return DBRef.prototype;
});
