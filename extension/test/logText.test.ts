import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  LogTail,
  MAX_CHARACTERS,
  parseRuns,
  PLAIN_STYLE,
  stripStyles,
  TextBuffer
} from '../src/logs/logText';
import { FakeLogs } from './support/logs';

const line = (number: number) => `line ${number}: ${'.'.repeat(90)}\n`;

function lines(count: number): string {
  return Array.from({ length: count }, (_, number) => line(number)).join('');
}

test('what is added piece by piece is the text', () => {
  const text = new TextBuffer();

  text.append('one');
  text.append(' line\nand');
  text.append('');
  text.append(' half');

  assert.equal(text.toString(), 'one line\nand half');
  assert.equal(text.chunks.length, 1);
});

test('a long text is in pieces that end with lines, and only the last one changes', () => {
  const text = new TextBuffer();
  text.append(lines(2000));
  const before = text.chunks;

  text.append('more\n');

  assert.ok(before.length > 3);
  assert.ok(text.chunks.every(chunk => chunk.text.endsWith('\n')));
  assert.deepEqual(text.chunks.slice(0, -1), before.slice(0, -1));
  assert.ok(text.chunks.slice(0, -1).every((chunk, at) => chunk === before[at]));
  assert.equal(text.chunks.at(-1)?.id, before.at(-1)?.id);
  assert.equal(text.toString(), `${lines(2000)}more\n`);
});

test('of a text that grows without end the last part is kept, from the begin of a line', () => {
  const text = new TextBuffer();
  const all = lines(25_000);

  for (let at = 0; at < all.length; at += 70_000) {
    text.append(all.slice(at, at + 70_000));
  }

  const kept = text.toString();
  assert.ok(text.isCut);
  assert.ok(kept.length <= MAX_CHARACTERS && kept.length > MAX_CHARACTERS - 100_000);
  assert.ok(all.endsWith(kept) && kept.startsWith('line '));
  assert.equal(new Set(text.chunks.map(chunk => chunk.id)).size, text.chunks.length);
});

test('a line that is longer than anything that is kept is cut, too', () => {
  const text = new TextBuffer();

  text.append('x'.repeat(3 * MAX_CHARACTERS));
  text.append('the end');

  assert.ok(text.toString().length <= MAX_CHARACTERS);
  assert.ok(text.toString().endsWith('xthe end'));
});

test('a short text is not cut', () => {
  const text = new TextBuffer();

  text.append(lines(100));

  assert.ok(!text.isCut);
});

test('of a progress bar the last state is left, however it comes', () => {
  const whole = 'begin\n 10 %\r 50 %\r100 %\r\nend\r\r\n';
  for (const size of [1, 2, 5, whole.length]) {
    const text = new TextBuffer();
    for (let at = 0; at < whole.length; at += size) {
      text.append(whole.slice(at, at + size));
    }

    assert.equal(text.toString(), 'begin\n100 %\nend\n');
    assert.equal(text.chunks[0]?.text, 'begin\n100 %\nend\n');
  }
});

test('what a carriage return ends is there until more comes', () => {
  const text = new TextBuffer();

  text.append(' 10 %\r 20 %\r');
  assert.equal(text.toString(), ' 20 %\r');
  text.append(' 30 %\r');
  assert.equal(text.toString(), ' 30 %\r');
});

test('a color goes on from piece to piece', () => {
  const text = new TextBuffer();

  text.append('\x1b[31m' + lines(1000));

  const [first, ...others] = text.chunks.map(chunk => chunk.style.color);
  assert.equal(first, '');
  assert.ok(others.length > 1);
  assert.ok(others.every(color => color === 'red'));
});

function tailed(text = '') {
  const logs = new FakeLogs();
  logs.write('head', text);
  const tail = new LogTail();
  return { logs, tail, read: () => tail.read(from => logs.part('head', from)) };
}

test('a log is read to its end, and on from there', async () => {
  const { logs, tail, read } = tailed('one\n');

  assert.ok(await read());
  logs.write('head', 'two\n');
  assert.ok(await read());

  assert.equal(tail.text.toString(), 'one\ntwo\n');
  assert.deepEqual(logs.asked.at(-1), ['head', 4]);
});

test('a log to which nothing was added has nothing new', async () => {
  const { tail, read } = tailed('one\n');
  await read();

  assert.equal(await read(), false);
  assert.equal(tail.text.toString(), 'one\n');
});

test('a log of several parts is read with one call', async () => {
  const text = 'a line\n'.repeat(100_000);
  const { logs, tail, read } = tailed(text);

  await read();

  assert.equal(tail.text.toString(), text);
  assert.equal(tail.size, text.length);
  assert.equal(logs.asked.length, 3);
});

test('of a long log only the end is asked for, and shown from the begin of a line', async () => {
  const text = 'what is a line\n'.repeat(200_000);
  const { logs, tail, read } = tailed(text);

  await read();

  assert.deepEqual(logs.asked[0], ['head', -MAX_CHARACTERS]);
  assert.equal(logs.asked.length, 4);
  assert.ok(tail.text.isCut);
  assert.ok(tail.text.toString().startsWith('what is'));
  assert.ok(text.endsWith(tail.text.toString()));
});

test('a log that was begun anew is read from its begin', async () => {
  const { logs, tail, read } = tailed('the first life of the cluster\n');
  await read();

  logs.texts.set('head', 'the second\n');
  assert.ok(await read());

  assert.equal(tail.text.toString(), 'the second\n');
  assert.ok(!tail.text.isCut);
});

test('what has grown by more than is kept is read at its end only, without what came before the gap', async () => {
  const { logs, tail, read } = tailed('long ago\n');
  await read();

  logs.write('head', 'noise of a line\n'.repeat(300_000));
  await read();

  assert.ok(tail.text.isCut);
  assert.ok(tail.text.toString().startsWith('noise'));
  assert.ok(logs.asked.length < 8);
});

test('a part that fails leaves what was read, and the next read goes on there', async () => {
  const { logs, tail, read } = tailed('one\n');
  await read();
  logs.write('head', 'two\n');

  logs.trouble = new Error('the network is down');
  await assert.rejects(read);
  logs.trouble = null;
  await read();

  assert.equal(tail.text.toString(), 'one\ntwo\n');
});

/** Return what is drawn of a text: characters, with their color and weight before them. */
function drawn(text: string, begin = PLAIN_STYLE): string[] {
  return parseRuns(text, begin).runs.map(
    ({ text: run, style }) => `${style.color}${style.isBold ? '*' : ''}:${run}`
  );
}

const TEXTS: [string, string[]][] = [
  ['plain', [':plain']],
  ['', []],
  ['\x1b[31mred\x1b[0m plain', ['red:red', ': plain']],
  ['\x1b[1;32mboth\x1b[22mgreen\x1b[39mnone', ['green*:both', 'green:green', ':none']],
  ['\x1b[91mbright\x1b[mover', ['red:bright', ':over']],
  ['\x1b[01;31m\x1b[Kgcc\x1b[m\x1b[K', ['red*:gcc']],
  ['\x1b[38;5;1;1mof 256\x1b[m\x1b[48;2;31;31;31mof all', ['*:of 256', ':of all']],
  ['\x1b[30;40mblack\x1b[8mhidden', [':black', ':hidden']],
  ['mpi://here <b>&amp;', [':mpi://here <b>&amp;']]
];
for (const [text, runs] of TEXTS) {
  test(`${JSON.stringify(text)} is drawn in its colors, and all of it can be read`, () => {
    assert.deepEqual(drawn(text), runs);
  });
}

test('a color goes on in the text that follows', () => {
  const { end } = parseRuns('\x1b[1;34mbegun\n', PLAIN_STYLE);

  assert.deepEqual(drawn('on\x1b[m', end), ['blue*:on']);
});

test('a text that is copied has no colors', () => {
  assert.equal(stripStyles('\x1b[31mred\x1b[K\x1b[m plain'), 'red plain');
});
