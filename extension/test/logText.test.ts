import assert from 'node:assert/strict';
import { test } from 'node:test';

import { KEPT, TextEnd } from '../src/logs/text';

const line = (number: number) => `line ${number}: ${'.'.repeat(90)}\n`;

function lines(count: number): string {
  return Array.from({ length: count }, (_, number) => line(number)).join('');
}

test('what is added piece by piece is the text', () => {
  const text = new TextEnd();

  text.append('one');
  text.append(' line\nand');
  text.append('');
  text.append(' half');

  assert.equal(text.toString(), 'one line\nand half');
  assert.equal(text.pieces.length, 1);
});

test('a long text is in pieces that end with lines, and only the last one changes', () => {
  const text = new TextEnd();
  text.append(lines(2000));
  const before = text.pieces;

  text.append('more\n');

  assert.ok(before.length > 3);
  assert.ok(text.pieces.every(its => its.text.endsWith('\n')));
  assert.deepEqual(text.pieces.slice(0, -1), before.slice(0, -1));
  assert.ok(text.pieces.slice(0, -1).every((its, at) => its === before[at]));
  assert.equal(text.pieces.at(-1)?.id, before.at(-1)?.id);
  assert.equal(text.toString(), `${lines(2000)}more\n`);
});

test('of a text that grows without end the last part is kept, from the begin of a line', () => {
  const text = new TextEnd();
  const all = lines(25_000);

  for (let at = 0; at < all.length; at += 70_000) {
    text.append(all.slice(at, at + 70_000));
  }

  const kept = text.toString();
  assert.ok(text.isCut);
  assert.ok(kept.length <= KEPT && kept.length > KEPT - 100_000);
  assert.ok(all.endsWith(kept) && kept.startsWith('line '));
  assert.equal(new Set(text.pieces.map(its => its.id)).size, text.pieces.length);
});

test('a line that is longer than anything that is kept is cut, too', () => {
  const text = new TextEnd();

  text.append('x'.repeat(3 * KEPT));
  text.append('the end');

  assert.ok(text.toString().length <= KEPT);
  assert.ok(text.toString().endsWith('xthe end'));
});

test('a short text is not cut', () => {
  const text = new TextEnd();

  text.append(lines(100));

  assert.ok(!text.isCut);
});

test('of a progress bar the last state is left, however it comes', () => {
  const whole = 'begin\n 10 %\r 50 %\r100 %\r\nend\r\r\n';
  for (const size of [1, 2, 5, whole.length]) {
    const text = new TextEnd();
    for (let at = 0; at < whole.length; at += size) {
      text.append(whole.slice(at, at + size));
    }

    assert.equal(text.toString(), 'begin\n100 %\nend\n');
    assert.equal(text.pieces[0]?.text, 'begin\n100 %\nend\n');
  }
});

test('what a carriage return ends is there until more comes', () => {
  const text = new TextEnd();

  text.append(' 10 %\r 20 %\r');
  assert.equal(text.toString(), ' 20 %\r');
  text.append(' 30 %\r');
  assert.equal(text.toString(), ' 30 %\r');
});

test('a colour goes on from piece to piece', () => {
  const text = new TextEnd();

  text.append('\x1b[31m' + lines(1000));

  const [first, ...others] = text.pieces.map(its => its.look.colour);
  assert.equal(first, '');
  assert.ok(others.length > 1);
  assert.ok(others.every(its => its === 'red'));
});
