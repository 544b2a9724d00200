(module
  (type (;0;) (func (param i32) (result i32)))
  (type (;1;) (func (param i32 i32) (result i32)))
  (type (;2;) (func (param f32 f32) (result f32)))
  (memory (;0;) 17)
  (global (;0;) (mut i32) i32.const 1048576)
  (global (;1;) i32 i32.const 1048592)
  (global (;2;) i32 i32.const 1048580)
  (export "memory" (memory 0))
  (export "souk_alloc" (func 0))
  (export "__heap_base" (global 1))
  (export "souk_run" (func 1))
  (export "__data_end" (global 2))
  (func (;0;) (type 0) (param i32) (result i32)
    (local i32 i32)
    memory.size
    local.set 1
    block ;; label = @1
      i32.const 0
      i32.load offset=1048576
      i32.const 1048607
      i32.add
      i32.const -16
      i32.and
      local.tee 2
      local.get 0
      i32.add
      local.tee 0
      local.get 1
      i32.const 16
      i32.shl
      local.tee 1
      i32.le_u
      br_if 0 (;@1;)
      local.get 0
      local.get 1
      i32.sub
      i32.const 16
      i32.shr_u
      local.get 0
      i32.const 65535
      i32.and
      i32.const 0
      i32.ne
      i32.add
      memory.grow
      i32.const -1
      i32.ne
      br_if 0 (;@1;)
      unreachable
    end
    i32.const 0
    local.get 0
    i32.const 1048592
    i32.sub
    i32.store offset=1048576
    local.get 2
  )
  (func (;1;) (type 1) (param i32 i32) (result i32)
    (local i32 i32 i32 i64 i32 i32 i32 i32 i32 i32 i32 i32 i32 f32 f32)
    i32.const 0
    local.set 2
    block ;; label = @1
      local.get 1
      i32.const 1
      i32.ne
      br_if 0 (;@1;)
      local.get 0
      i32.load
      i32.const 1
      i32.ne
      br_if 0 (;@1;)
      local.get 0
      i32.load offset=4
      local.tee 3
      i32.eqz
      br_if 0 (;@1;)
      local.get 0
      i32.load offset=12
      local.set 4
      i64.const 1
      local.set 5
      local.get 0
      i32.load offset=8
      local.tee 6
      local.set 2
      local.get 3
      local.set 0
      loop ;; label = @2
        local.get 2
        i64.load
        local.get 5
        i64.mul
        local.set 5
        local.get 2
        i32.const 8
        i32.add
        local.set 2
        local.get 0
        i32.const -1
        i32.add
        local.tee 0
        br_if 0 (;@2;)
      end
      local.get 6
      local.get 3
      i32.const 3
      i32.shl
      i32.add
      i32.const -8
      i32.add
      i32.load
      local.set 2
      local.get 5
      i32.wrap_i64
      local.tee 1
      i32.const 2
      i32.shl
      local.tee 0
      call 0
      local.set 7
      block ;; label = @2
        local.get 0
        i32.eqz
        br_if 0 (;@2;)
        local.get 7
        local.get 4
        local.get 0
        memory.copy
      end
      block ;; label = @2
        local.get 2
        i32.const 1
        local.get 2
        i32.const 1
        i32.gt_u
        select
        local.tee 0
        local.get 1
        i32.gt_u
        br_if 0 (;@2;)
        local.get 1
        local.get 0
        i32.div_u
        local.tee 1
        i32.const 1
        local.get 1
        i32.const 1
        i32.gt_u
        select
        local.set 8
        i32.const 0
        local.set 9
        local.get 2
        i32.const 2
        i32.gt_u
        local.get 0
        i32.const -1
        i32.add
        local.tee 2
        local.get 0
        i32.const -2
        i32.add
        local.tee 1
        local.get 2
        local.get 1
        i32.lt_u
        select
        local.tee 10
        i32.const 0
        i32.ne
        i32.and
        local.set 11
        local.get 0
        i32.const 2
        i32.shl
        local.set 12
        local.get 7
        i32.const 4
        i32.add
        local.set 13
        loop ;; label = @3
          local.get 4
          local.set 2
          local.get 13
          local.set 0
          local.get 10
          local.set 1
          block ;; label = @4
            local.get 11
            i32.eqz
            br_if 0 (;@4;)
            loop ;; label = @5
              local.get 0
              local.get 2
              i32.const 4
              i32.add
              local.tee 14
              f32.load
              local.get 2
              f32.load
              local.tee 15
              local.get 2
              i32.const 8
              i32.add
              f32.load
              local.tee 16
              call 3
              call 2
              local.get 15
              local.get 16
              call 2
              call 3
              f32.store
              local.get 0
              i32.const 4
              i32.add
              local.set 0
              local.get 14
              local.set 2
              local.get 1
              i32.const -1
              i32.add
              local.tee 1
              br_if 0 (;@5;)
            end
          end
          local.get 4
          local.get 12
          i32.add
          local.set 4
          local.get 13
          local.get 12
          i32.add
          local.set 13
          local.get 9
          i32.const 1
          i32.add
          local.tee 9
          local.get 8
          i32.ne
          br_if 0 (;@3;)
        end
      end
      i32.const 16
      call 0
      local.tee 2
      local.get 7
      i32.store offset=12
      local.get 2
      local.get 6
      i32.store offset=8
      local.get 2
      local.get 3
      i32.store offset=4
      local.get 2
      i32.const 1
      i32.store
    end
    local.get 2
  )
  (func (;2;) (type 2) (param f32 f32) (result f32)
    local.get 1
    local.get 1
    local.get 0
    local.get 0
    local.get 1
    f32.lt
    select
    local.get 0
    local.get 0
    f32.ne
    select
  )
  (func (;3;) (type 2) (param f32 f32) (result f32)
    local.get 0
    local.get 0
    local.get 1
    local.get 0
    local.get 1
    f32.lt
    select
    local.get 1
    local.get 1
    f32.ne
    select
  )
)
