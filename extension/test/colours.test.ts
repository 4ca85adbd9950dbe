import assert from 'node:assert/strict';
import { test } from 'node:test';

import { PLAIN, plain, runsOf } from '../src/logs/colours';

/** Return what is drawn of a text: characters, with their colour and weight before them. */
function drawn(text: string, begin = PLAIN): string[] {
  return runsOf(text, begin).runs.map(
    ({ text: its, look }) => `${look.colour}${look.isBold ? '*' : ''}:${its}`
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
  test(`${JSON.stringify(text)} is drawn in its colours, and all of it can be read`, () => {
    assert.deepEqual(drawn(text), runs);
  });
}

test('a colour goes on in the text that follows', () => {
  const { end } = runsOf('\x1b[1;34mbegun\n', PLAIN);

  assert.deepEqual(drawn('on\x1b[m', end), ['blue*:on']);
});

test('a text that is copied has no colours', () => {
  assert.equal(plain('\x1b[31mred\x1b[K\x1b[m plain'), 'red plain');
});
