import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ServerConnection } from '@jupyterlab/services';

import { Api } from '../src/api';
import { logsOf } from '../src/logs/contract';
import { download } from '../src/logs/download';

test('a log is shown as it can be, and downloaded as it is', async t => {
  const asked: string[] = [];
  const fetch = (input: RequestInfo | URL): Promise<Response> => {
    asked.push(new Request(input).url.replace(/&\d+$/, ''));
    return Promise.resolve(new Response('{"text": "\\u001b", "next": 1, "size": 1}'));
  };
  const settings = ServerConnection.makeSettings({
    baseUrl: 'http://hub.example/',
    fetch,
    Request,
    Headers
  });
  const source = logsOf(new Api(settings), 'a');
  const saved: Blob[] = [];
  t.mock.method(URL, 'createObjectURL', (blob: Blob) => {
    saved.push(blob);
    return 'blob:0';
  });
  Object.assign(globalThis, {
    document: { cookie: '', createElement: () => ({ click: () => undefined }) }
  });

  await source.part('head', -10);
  await download(source, 'head', 'a-head.log');
  await logsOf(new Api(settings), 'a', '1f').part('head', 0);

  const url = 'http://hub.example/workbench/api/clusters/a/logs/head';
  assert.deepEqual(asked, [
    `${url}?from=-10&raw=false`,
    `${url}?from=0&raw=true`,
    `${url}?from=0&raw=false&id=1f`
  ]);
  assert.deepEqual(await Promise.all(saved.map(blob => blob.text())), ['\u001b']);
});
