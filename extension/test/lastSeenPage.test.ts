import assert from 'node:assert/strict';
import { beforeEach, test } from 'node:test';

import { trackLastSeenPage } from '../src/notifications/lastSeenPage';
import { settled } from './support/fakes';

const document = { hidden: false };

/** A lock of a browser: it is granted later, and who loses it may hear of that after another one has got it. */
class Lock {
  private lose: ((error: Error) => void) | undefined;
  private queue: (() => void)[] = [];

  readonly request = (_: string, { steal }: LockOptions, granted: () => Promise<never>) =>
    new Promise<never>((_, lose) => {
      const take = () => {
        const before = this.lose;
        this.lose = lose;
        void granted();
        before?.(new Error('stolen'));
      };
      if (steal) {
        queueMicrotask(take);
      } else {
        this.queue.push(take);
        this.next();
      }
    });

  /** The page that holds the lock is closed. */
  release(): void {
    this.lose = undefined;
    this.next();
  }

  private next(): void {
    if (!this.lose) {
      const take = this.queue.shift();
      if (take) {
        queueMicrotask(take);
      }
    }
  }
}

/** Open a page, and another one after it. */
async function opened() {
  const lock = new Lock();
  const isLastSeen = trackLastSeenPage('news', lock as unknown as LockManager);
  await settled();
  assert.ok(isLastSeen());
  const other = lock.request('news', { steal: true }, () => new Promise<never>(() => undefined));
  other.catch(() => undefined);
  await settled();
  assert.ok(!isLastSeen());
  return { lock, isLastSeen };
}

beforeEach(() => {
  const [shown, focused] = [new EventTarget(), new EventTarget()];
  Object.assign(globalThis, { document: Object.assign(shown, document), window: focused });
});

test('a page that comes to the front with the focus has been seen last', async () => {
  const { isLastSeen } = await opened();

  globalThis.document.dispatchEvent(new Event('visibilitychange'));
  globalThis.window.dispatchEvent(new Event('focus'));
  await settled();

  assert.ok(isLastSeen());
});

test('a page has been seen last when the one after it is closed', async () => {
  const { lock, isLastSeen } = await opened();

  lock.release();
  await settled();

  assert.ok(isLastSeen());
});

test('without locks each page counts', () => {
  assert.ok(trackLastSeenPage('news', undefined)());
});
